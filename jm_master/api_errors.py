"""What the API's operations raise to say no, and how they read a request."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from jm_core.errors import JmError

RequestT = TypeVar("RequestT")


class RefusedError(JmError):
    """Becomes the ``error`` of a reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def decoded(data: bytes, kind: type[RequestT]) -> RequestT:
    """Raises: RefusedError."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RefusedError("bad_request", f"request of {len(data)} bytes: {error}") from None
