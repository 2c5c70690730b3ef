"""How a log record is written: for people, or as one JSON object a line. Secrets are taken out of either.

What is logged may come from anywhere, a handler or a library: no text, however broken or long, may make two lines of
one, invalid JSON, or a control sequence for a terminal.
"""

import json
import logging
import math
import time
from datetime import UTC, datetime
from typing import Any, Final

from jm_cli.plain_text import safe, safe_json
from jm_cli.redaction import redact

VALUE_CHARS_MAX: Final = 4_000
TRACE_CHARS_MAX: Final = 16_000
ITEMS_MAX: Final = 50
DEPTH_MAX: Final = 4
LINE_CHARS_MAX: Final = 100_000
# What every record has; the rest came in by `extra`, or is known of who logs (`jm_nats.log_context`).
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class ConsoleFormatter(logging.Formatter):
    """``12:00:00 INFO    worker: bucket lost  bucket=b1 epoch=3``."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("jobmaster.")
        facts = "".join(f" {_cut(str(key))}={_shown(value)}" for key, value in extras(record).items())
        line = safe(f"{at} {record.levelname:<7} {name}: {_message(record)}{' ' if facts else ''}{facts}")
        trace = "\n".join(safe(line) for line in _trace(self, record).splitlines())
        return redact(f"{line}\n{trace}" if trace else line)


class JsonFormatter(logging.Formatter):
    """The message, which is the event's name where the record is ours, and the facts beside it."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": redact(_cut(record.name)),
            "message": redact(_message(record)),
        }
        facts = {redact(_cut(str(key))): _plain(value) for key, value in extras(record).items()}
        entry |= {key: value for key, value in facts.items() if key not in entry}
        trace = redact(_trace(self, record))
        if trace:
            entry["exception"] = trace
        line = _dumped(entry)
        if len(line) > LINE_CHARS_MAX:  # a thousand facts: what it is about is what counts
            line = _dumped({key: entry[key] for key in ("time", "level", "logger", "message")} | {"cut": len(line)})
        return line


def extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _message(record: logging.LogRecord) -> str:
    """A library may have got its arguments wrong; then its text as it is, for dropping the line tells nobody."""
    try:
        return _cut(record.getMessage())
    except Exception:  # noqa: BLE001 - whatever ``__str__`` or ``%`` of anybody raises
        return _cut(_text(record.msg))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as broken:  # noqa: BLE001 - somebody else's ``__str__``
        return f"<{type(value).__name__} without a text: {type(broken).__name__}>"


def _cut(text: str, limit: int = VALUE_CHARS_MAX) -> str:
    """Bounded, and without half surrogates, which no encoding has."""
    if len(text) > limit:
        text = f"{text[:limit]}… [cut, {len(text)} characters]"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _plain(value: object, depth: int = 0) -> Any:
    """As something that JSON has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and -(2**53) <= value <= 2**53:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if depth < DEPTH_MAX and isinstance(value, dict):
        items = list(value.items())[:ITEMS_MAX]
        return {redact(_cut(_text(key))): _plain(inner, depth + 1) for key, inner in items}
    if depth < DEPTH_MAX and isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth + 1) for inner in list(value)[:ITEMS_MAX]]
    return redact(_cut(_text(value)))


def _dumped(entry: dict[str, Any]) -> str:
    return safe_json(json.dumps(entry, ensure_ascii=False, allow_nan=False))


def _shown(value: object) -> str:
    text = _cut(_text(value))
    return json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() or c == '"' for c in text) else text


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    try:
        return _cut(formatter.formatException(record.exc_info), TRACE_CHARS_MAX)
    except Exception as broken:  # noqa: BLE001 - an exception that cannot be shown
        return f"<no traceback: {type(broken).__name__}>"
