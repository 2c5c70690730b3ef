"""What the API's operations raise to say no, and how they read a request."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from jm_core.errors import JmError

if TYPE_CHECKING:
    from collections.abc import Iterator

RequestT = TypeVar("RequestT")


class RefusedError(JmError):
    """Becomes the ``error`` of a reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def within(seconds: float, whom: str) -> Iterator[None]:
    """The body, for so long.

    Args:
        whom: what may be the one that does not answer.

    Raises:
        RefusedError: it took longer; it says so.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise RefusedError("timeout", f"{whom} did not answer within {seconds:g} s; ask again later") from None


def decoded(data: bytes, kind: type[RequestT]) -> RequestT:
    """Raises: RefusedError."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RefusedError("bad_request", f"request of {len(data)} bytes: {error}") from None
