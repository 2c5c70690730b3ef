"""Reads the outline of JSON text without building values: linear, without recursion, whatever the text is.

Parsers give up at the first wrong byte, and at some depth of nesting, each at another one. What decides about depth,
and what cuts good jobs free of a bad neighbour, must do neither.
"""

import re
from array import array
from itertools import accumulate
from typing import Final

# Texts with their quotes (the last one's end may be missing), a run of brackets of one direction, or a comma.
_TOKEN: Final = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"?)++|[\[{]++|[\]}]++|,', re.DOTALL)
_MEMBER: Final = re.compile(rb'\s*("(?:[^"\\]++|\\.)*+")\s*:(.*)', re.DOTALL)
_OPENING: Final = b"[{"
_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes


def depth_of(text: bytes) -> int:
    """Deepest nesting of brackets outside texts."""
    steps = array("b", without_texts(text).translate(_STEPS, _ALL_BUT_BRACKETS))
    return max(accumulate(steps, initial=0))


def without_texts(text: bytes) -> bytes:
    """What stands outside quotes. Every second piece between quotes is a text, once the escaped ones are gone."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2]) if b'"' in text else text


def elements(text: bytes, *, at_most: int) -> list[bytes]:
    """The elements of the outermost array (or the members of the object) exactly as they were written.

    Args:
        text: JSON, or what was meant to be; its elements may be anything.
        at_most: where to stop; the last element is then all the rest.

    Returns:
        Nothing only for an empty array. Where brackets or quotes do not match, the rest of the text is the last
        element; so is whatever follows the array.
    """
    found: list[bytes] = []
    start = depth = 0
    for match in _TOKEN.finditer(text):
        token = text[match.start()]
        if token == _COMMA:
            if depth == 1:
                found.append(text[start : match.start()].strip())
                start = match.end()
                if len(found) + 1 >= at_most:
                    break
        elif token in _OPENING:
            if not depth:
                start = match.start() + 1
            depth += match.end() - match.start()
        elif token != _QUOTE and depth:
            run = match.end() - match.start()
            if run >= depth:
                return _with_last(found, text, start, match.start() + depth - 1)
            depth -= run
    return [*found, text[start:].strip()]


def _with_last(found: list[bytes], text: bytes, start: int, end: int) -> list[bytes]:
    last, rest = text[start:end].strip(), text[end + 1 :].strip()
    if last or found:
        found.append(last)
    return [*found, rest] if rest else found


def members(text: bytes, *, at_most: int) -> list[tuple[bytes, bytes]]:
    """(key with its quotes, value) of the outermost object's members as written; those that can be told apart."""
    matches = map(_MEMBER.fullmatch, elements(text, at_most=at_most))
    return [(match[1], match[2].strip()) for match in matches if match is not None]
