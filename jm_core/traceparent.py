"""W3C trace context: which texts are a ``traceparent`` (https://www.w3.org/TR/trace-context/#traceparent-header).

A malformed one is no reason to refuse a job, or to do anything else with it than without one: the standard says to go
on as if it were not there, and whoever made it is often another program than the one that submits.
"""

import re
from typing import Final

TRACEPARENT_CHARS: Final = 55
_form: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def usable_traceparent(value: object) -> str | None:
    """``value`` if it is one; of a version to come, the part that this one knows."""
    if not isinstance(value, str):
        return None
    found = _form.match(value)
    if found is None:
        return None
    if len(value) == TRACEPARENT_CHARS:
        return value
    is_later = found[1] != "00" and value[TRACEPARENT_CHARS] == "-"
    return value[:TRACEPARENT_CHARS] if is_later else None


def trace_id_of(value: str) -> str | None:
    found = _form.match(value)
    return found[2] if found else None
