"""Text that others wrote, made harmless for a terminal: no control sequence (CSI, OSC, 8-bit), no carriage return that
overwrites a line, no override that makes text read backwards. What is taken out stays visible as an escape.
"""

import re
from typing import Final

_BIDI: Final = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
_unsafe = re.compile(f"[\x00-\x1f\x7f-\x9f{_BIDI}]")
_unsafe_in_lines = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}]")
# JSON text has its controls escaped already; these it may hold raw, inside strings, where an escape means the same.
_raw_in_json = re.compile(f"[\x7f-\x9f{_BIDI}]")


def safe(text: str) -> str:
    """``text`` on one line."""
    return _unsafe.sub(_escaped, text)


def safe_lines(text: str) -> str:
    """``text`` with its line ends and tabs."""
    return _unsafe_in_lines.sub(_escaped, text)


def safe_json(text: str) -> str:
    """JSON text that is still the same JSON."""
    return _raw_in_json.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def one_line(text: str) -> str:
    """``text`` on one line, its lines set apart."""
    return safe(" | ".join(line.strip() for line in text.splitlines() if line.strip()))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
