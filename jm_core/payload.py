"""What may travel as arguments or result: JSON that every part downstream can hold without loss.

The checks read encoded bytes, because they run for every job in client and writer, and only a suspicious payload is
walked value by value. What most payloads do not have is looked for by a single byte of it first: 15 ns (measured), the
search for several takes 150 to 350.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from jm_core import limits
from jm_core.errors import InvalidJobError
from jm_core.scan import depth_of, without_texts

_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_value: Final = msgspec.json.Decoder(Any).decode
_NUL: Final = b"\\u0000"
_BACKSLASH, _MINUS, _SMALL_U = b"\\-u"
_EXPONENT: Final = re.compile(rb"[0-9.][eE][-+]?0*+([0-9]*+)")
_LONG_NUMBER: Final = re.compile(rb"(?<![0-9.])[0-9.]{%d}" % (limits.NUMBER_CHARS_MAX + 1))
_PATH_KEY_CHARS: Final = 40  # of a key, in the path that an error names


def check_args(raw: bytes) -> None:
    """Refuse arguments that could not be stored, sent on or read back.

    Args:
        raw: the JSON text of ``args``, exactly as it would be stored.

    Raises:
        InvalidJobError: naming the path, the limit and the remedy; for size, depth, non-objects, NUL characters,
            text that is not UTF-8, and numbers outside what Python and Postgres both hold.
    """
    if len(raw) > limits.ARGS_DEPTH_MAX:  # else it is not nested deeper either
        _check_args_outline(raw)
    try:
        value = _decode_object(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJobError("args", _plain(error, "args"), remedy="send a JSON object with string keys") from None
    if _is_suspicious(raw, limits.ARGS_BYTES_MAX):
        _check_value(value, raw, "args", limits.ARGS_BYTES_MAX)


def check_decoded_args(raw: bytes) -> None:
    """``check_args`` for arguments that have just been decoded whole, by a handler's own types: only what is left.

    Raises:
        InvalidJobError: as ``check_args``.
    """
    if len(raw) > limits.ARGS_DEPTH_MAX:  # else it is not nested deeper either
        _check_args_outline(raw)
    if _is_suspicious(raw, limits.ARGS_BYTES_MAX):
        check_args(raw)


def _check_args_outline(raw: bytes) -> None:
    if len(raw) > limits.ARGS_BYTES_MAX:
        raise InvalidJobError(
            "args", f"{len(raw)} bytes, the limit is {limits.ARGS_BYTES_MAX}", remedy="pass a reference instead"
        )
    if raw.count(b"[") + raw.count(b"{") > limits.ARGS_DEPTH_MAX:
        _check_depth(raw, "args")


def check_result(raw: bytes) -> None:
    """The same for a result, which may be any JSON value.

    It is decoded too, although we encoded it: a handler may return ``msgspec.Raw``, which nobody has looked into, and
    which would spoil the message that carries the outcomes of others.

    Raises:
        InvalidJobError: as ``check_args``, with field ``result``.
    """
    if len(raw) > limits.RESULT_BYTES_MAX:
        raise InvalidJobError(
            "result",
            f"{len(raw)} bytes, the limit is {limits.RESULT_BYTES_MAX}",
            remedy="store it elsewhere and return a reference",
        )
    _check_depth(raw, "result")
    try:
        value = _decode_value(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJobError("result", _plain(error, "result"), remedy="return what JSON can hold") from None
    if _is_suspicious(raw, limits.RESULT_BYTES_MAX):
        _check_value(value, raw, "result", limits.RESULT_BYTES_MAX)


def _check_depth(raw: bytes, field: str) -> None:
    if depth_of(raw) > limits.ARGS_DEPTH_MAX:
        raise InvalidJobError(
            field, f"nested deeper than {limits.ARGS_DEPTH_MAX} levels", remedy="flatten it or send it as text"
        )


def _is_suspicious(raw: bytes, bytes_max: int) -> bool:
    """False for nearly every payload, in nanoseconds: no NUL, and neither of the two ways to write much number with few
    characters (small exponents; many large ones, for which a short text has no room).
    """
    return (
        len(raw) * 64 > bytes_max
        or (_BACKSLASH in raw and _NUL in raw)
        or (_MINUS in raw and (b"e-" in raw or b"E-" in raw))
    )


def _check_value(value: Any, raw: bytes, field: str, bytes_max: int) -> None:
    if _NUL in raw:
        for path, text in _texts(value, field):
            if "\0" in text:
                raise InvalidJobError(
                    path, "contains a NUL character, which Postgres cannot store", remedy="remove it or encode it"
                )
    _check_numbers(raw, field, bytes_max)


def _check_numbers(raw: bytes, field: str, bytes_max: int) -> None:
    """Postgres keeps every digit and writes them all: ``1e-300`` comes back as 302 characters, and arguments that were
    small when they came would not fit the message that takes them to a worker.
    """
    bare = without_texts(raw)
    if _LONG_NUMBER.search(bare):
        problem = f"a number of more than {limits.NUMBER_CHARS_MAX} digits"
        raise InvalidJobError(field, problem, remedy="send it as text")
    written = len(raw)
    for digits in _EXPONENT.findall(bare):
        exponent = int(digits or b"0") if len(digits) < 10 else limits.NUMBER_EXPONENT_MAX + 1
        if exponent > limits.NUMBER_EXPONENT_MAX:
            problem = f"a number with an exponent beyond {limits.NUMBER_EXPONENT_MAX}"
            raise InvalidJobError(field, problem, remedy="send it as text")
        written += exponent
    if written > bytes_max:
        problem = f"{written} bytes with its numbers written in full, as Postgres does; the limit is {bytes_max}"
        raise InvalidJobError(field, problem, remedy="round them, or send them as text")


def check_no_lost_floats(value: Any, raw: bytes, field: str) -> None:
    """Refuse NaN and infinities before they silently become ``null``: that is how msgspec writes them.

    Args:
        value: the Python value that was encoded.
        raw: its encoding; without a ``null`` in it there is nothing to look for.
    """
    if _SMALL_U not in raw or b"null" not in raw:
        return
    _check_depth(raw, field)  # the walk below is recursive
    # As the encoder sees it: dataclasses and enums hold floats too. What it copies unread (`Raw`) holds none.
    for path, number in _floats(msgspec.to_builtins(value, enc_hook=lambda _: None), field):
        if not math.isfinite(number):
            raise InvalidJobError(path, f"{number} is not JSON", remedy="send null or text instead")


def cut_text(text: str, bytes_max: int) -> str:
    """``text`` in at most ``bytes_max`` bytes of UTF-8, cut on a character boundary, NULs and lone surrogates shown."""
    safe = text.replace("\0", "\\u0000")
    raw = safe.encode("utf-8", "backslashreplace")
    if len(raw) <= bytes_max:
        return raw.decode()
    marker = f"… [cut, {len(raw)} bytes]".encode()
    kept = raw[: max(bytes_max - len(marker), 0)].decode("utf-8", "ignore")
    return kept + marker[: bytes_max - len(kept.encode())].decode("utf-8", "ignore")


def _plain(error: Exception, field: str) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).replace(" - at `$", f" - at `{field}")


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{str(key)[:_PATH_KEY_CHARS]}", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key in value:
            yield f"{path} (key {key[:_PATH_KEY_CHARS]!r})", str(key)
    for where, item in _children(value, path):
        yield from _texts(item, where)


def _floats(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    for where, item in _children(value, path):
        yield from _floats(item, where)
