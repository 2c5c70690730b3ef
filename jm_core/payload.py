"""What may travel as arguments or result: JSON that every part downstream can hold without loss.

The checks read encoded bytes, because they run for every job in client and writer: a substring search costs
nanoseconds, and only a suspicious payload is walked value by value.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from jm_core import limits
from jm_core.errors import InvalidJobError

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_value = msgspec.json.Decoder(Any).decode
_NUL: Final = b"\\u0000"


def check_args(raw: bytes) -> None:
    """Refuse arguments that could not be stored, sent on or read back.

    Args:
        raw: the JSON text of ``args``, exactly as it would be stored.

    Raises:
        InvalidJobError: naming the path, the limit and the remedy; for size, depth, non-objects, NUL characters,
            text that is not UTF-8, and numbers outside what Python and Postgres both hold.
    """
    if len(raw) > limits.ARGS_BYTES_MAX:
        raise InvalidJobError(
            "args", f"{len(raw)} bytes, the limit is {limits.ARGS_BYTES_MAX}", remedy="pass a reference instead"
        )
    _check_json(raw, "args")
    try:
        _decode_object(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJobError("args", _plain(error), remedy="send a JSON object with string keys") from None


def check_result(raw: bytes) -> None:
    """The same for a result, which may be any JSON value.

    Raises:
        InvalidJobError: as ``check_args``, with field ``result``.
    """
    if len(raw) > limits.RESULT_BYTES_MAX:
        raise InvalidJobError(
            "result",
            f"{len(raw)} bytes, the limit is {limits.RESULT_BYTES_MAX}",
            remedy="store it elsewhere and return a reference",
        )
    _check_json(raw, "result")


def _check_json(raw: bytes, field: str) -> None:
    if raw.count(b"[") + raw.count(b"{") > limits.ARGS_DEPTH_MAX and depth_of(raw) > limits.ARGS_DEPTH_MAX:
        raise InvalidJobError(
            field, f"nested deeper than {limits.ARGS_DEPTH_MAX} levels", remedy="flatten it or send it as text"
        )
    if _NUL in raw:
        for path, text in _texts(_parse(raw, field), field):
            if "\0" in text:
                raise InvalidJobError(
                    path, "contains a NUL character, which Postgres cannot store", remedy="remove it or encode it"
                )


def check_no_lost_floats(value: Any, raw: bytes, field: str) -> None:
    """Refuse NaN and infinities before they silently become ``null``: that is how msgspec writes them.

    Args:
        value: the Python value that was encoded.
        raw: its encoding; without a ``null`` in it there is nothing to look for.
    """
    if b"null" not in raw:
        return
    for path, number in _floats(value, field):
        if not math.isfinite(number):
            raise InvalidJobError(path, f"{number} is not JSON", remedy="send null or text instead")


def depth_of(raw: bytes) -> int:
    """Deepest nesting of brackets outside strings. Linear, no recursion, so no input can overflow it."""
    deepest = depth = 0
    in_text = escaped = False
    for byte in raw:
        if in_text:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_text = False
        elif byte == 0x22:
            in_text = True
        elif byte in (0x5B, 0x7B):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (0x5D, 0x7D):
            depth -= 1
    return deepest


def cut_text(text: str, bytes_max: int) -> str:
    """``text`` in at most ``bytes_max`` bytes of UTF-8, cut on a character boundary, NULs and lone surrogates shown."""
    safe = text.replace("\0", "\\u0000")
    raw = safe.encode("utf-8", "backslashreplace")
    if len(raw) <= bytes_max:
        return raw.decode()
    marker = f"… [cut, {len(raw)} bytes]"
    kept = raw[: bytes_max - len(marker.encode())].decode("utf-8", "ignore")
    return kept + marker


def _parse(raw: bytes, field: str) -> Any:
    try:
        return _decode_value(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJobError(field, _plain(error), remedy="send valid JSON") from None


def _plain(error: Exception) -> str:
    return str(error).replace(" - at `$", " at `args").replace("Number out of range", "number out of range")


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key!s}", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f"{path}.{name}", getattr(value, name)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key in value:
            yield f"{path} (key {key[:40]!r})", str(key)
    for where, item in _children(value, path):
        yield from _texts(item, where)


def _floats(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    for where, item in _children(value, path):
        yield from _floats(item, where)
