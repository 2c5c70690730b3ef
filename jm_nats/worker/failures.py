"""A handler's exception as text that is always safe to store: bounded, printable, and never failing itself."""

import traceback
from collections.abc import Iterator
from typing import Final

from jm_core import limits
from jm_core.payload import cut_text

FRAMES_MAX: Final = 20
MESSAGE_CHARS_MAX: Final = 2_000
CHAIN_MAX: Final = 5
GROUP_DEPTH_MAX: Final = 3


def describe(error: BaseException) -> str:
    """``Class: message`` and a bounded traceback, at most ``ERROR_BYTES_MAX`` bytes (BR-102, BR-120)."""
    try:
        text = "\n".join(part for part in _parts(error) if part)
    except Exception as broken:  # noqa: BLE001  (a handler's class: anything may happen in it)
        text = f"{type(error).__qualname__}: <it could not be described: {type(broken).__qualname__}>"
    return cut_text(text, limits.ERROR_BYTES_MAX)


def _parts(error: BaseException) -> Iterator[str]:
    cause = error
    for number in range(CHAIN_MAX):
        yield f"caused by {headline(cause)}" if number else headline(cause)
        yield _frames(cause)
        # Not `or`: an exception may define its own truth.
        following = cause.__cause__
        if following is None and not cause.__suppress_context__:
            following = cause.__context__
        if following is None:
            return
        cause = following
    yield "… [more causes]"


def headline(error: BaseException, depth: int = 0) -> str:
    """``Class: message``, for an exception whose ``__str__`` may itself be broken."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001  (as above)
        text = f"<its text could not be made: {type(broken).__name__}>"
    name = type(error).__qualname__
    if len(text) > MESSAGE_CHARS_MAX:
        text = f"{text[:MESSAGE_CHARS_MAX]}… [cut, {len(text)} characters]"
    if isinstance(error, BaseExceptionGroup):
        nested = error.exceptions[:CHAIN_MAX] if depth < GROUP_DEPTH_MAX else ()
        inner = "; ".join(headline(e, depth + 1) for e in nested) or "…"
        text = f"{text} [{inner}]"
    return f"{name}: {text}" if text else name


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_tb(error.__traceback__, limit=-FRAMES_MAX)).rstrip()
    except Exception:  # noqa: BLE001  (a traceback is a courtesy; the headline is there already)
        return ""
