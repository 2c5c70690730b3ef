"""What a handler can return or raise that is hard to keep (BR-102, BR-104, BR-111, BR-118, BR-120)."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1024 * 1024


class Opaque:
    """Nothing that JSON has a form for."""


class NeedsArguments(Exception):  # noqa: N818  (an error that pickle cannot make again)
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class BrokenText(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class Bare(BaseException):
    """Not an ``Exception``."""


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(20_000):
        value = [value]
    return value


def _circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _chained() -> BaseException:
    error: BaseException = RuntimeError("the first of a thousand")
    for number in range(1_000):
        following = RuntimeError(f"after {number}")
        following.__cause__ = error
        error = following
    return error


def _with_socket() -> BaseException:
    error = RuntimeError("it holds a socket")
    error.connection = socket.socket()  # type: ignore[attr-defined]
    error.connection.close()  # type: ignore[attr-defined]
    return error


RESULTS: Final[dict[str, Callable[[], Any]]] = {
    "nul": lambda: "a\0b",
    "nul_key": lambda: {"a\0b": 1},
    "nan": lambda: float("nan"),
    "infinity": lambda: {"deep": [float("inf")]},
    "8_mib": lambda: "x" * (8 * MIB),
    "bytes": lambda: b"\x00\xff",
    "set": lambda: {1},
    "object": Opaque,
    "surrogate": lambda: "\ud800",
    "deep": _deep,
    "circle": _circle,
    "huge_int": lambda: 10**5_000,
}

ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "nul": lambda: RuntimeError("a\0b"),
    "50_mb": lambda: RuntimeError("x" * 50_000_000),
    "surrogate": lambda: RuntimeError("lone \ud800 here"),
    "needs_arguments": lambda: NeedsArguments("one", "two"),
    "broken_text": BrokenText,
    "with_socket": _with_socket,
    "chained": _chained,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    "keyboard_interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base_exception": lambda: Bare("x"),
    "system_exit": lambda: SystemExit(0),
}


def fail(kind: str) -> NoReturn:
    error = ERRORS[kind]
    raise error()
