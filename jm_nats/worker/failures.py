"""A handler's exception as text that is always safe to store: bounded, printable, and never failing itself."""

import traceback
from typing import Final

from jm_core import limits
from jm_core.payload import cut_text

FRAMES_MAX: Final = 20
MESSAGE_CHARS_MAX: Final = 2_000
CHAIN_MAX: Final = 5


def describe(error: BaseException) -> str:
    """``Class: message`` and a bounded traceback, at most ``ERROR_BYTES_MAX`` bytes (BR-102, BR-120)."""
    parts = [headline(error)]
    seen = 0
    cause: BaseException | None = error
    while cause is not None and seen < CHAIN_MAX:
        if seen:
            parts.append(f"caused by {headline(cause)}")
        parts.append(_frames(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        seen += 1
    if cause is not None:
        parts.append("… [more causes]")
    return cut_text("\n".join(part for part in parts if part), limits.ERROR_BYTES_MAX)


def headline(error: BaseException) -> str:
    """``Class: message``, for an exception whose ``__str__`` may itself be broken."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001  (a handler's class: anything may happen in it)
        text = f"<its text could not be made: {type(broken).__name__}>"
    name = type(error).__qualname__
    if len(text) > MESSAGE_CHARS_MAX:
        text = f"{text[:MESSAGE_CHARS_MAX]}… [cut, {len(text)} characters]"
    if isinstance(error, BaseExceptionGroup):
        inner = "; ".join(headline(e) for e in error.exceptions[:CHAIN_MAX])
        text = f"{text} [{inner}]"
    return f"{name}: {text}" if text else name


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_tb(error.__traceback__, limit=-FRAMES_MAX)).rstrip()
    except Exception:  # noqa: BLE001  (a traceback is a courtesy; the headline is there already)
        return ""
