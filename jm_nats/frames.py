"""Bytes of the NATS protocol, made by us where it has to be fast. Pure.

https://docs.nats.io/reference/reference-protocols/nats-protocol (HPUB); headers as in ADR-4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_is_bad_subject = re.compile(r"[\s*>]|^$|^\.|\.$|\.\.").search
_is_header_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_is_bad_value = re.compile(r"[\r\n\0]").search


def publish_frame(subject: str, reply: str, header: bytes, payload: bytes) -> bytes:
    """A whole HPUB.

    Raises:
        ValueError: a subject that is several, or another line of the protocol.
    """
    if _is_bad_subject(subject):
        raise ValueError(f"subject {subject!r} cannot be published to: it is empty, or has spaces or wildcards")
    sizes = (len(header), len(header) + len(payload))
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply.encode(), *sizes, header, payload)


def header_block(msg_id: str, headers: Mapping[str, str] | None) -> bytes:
    """The message id and further headers. What would break out of its line is refused, not replaced by spaces.

    Raises:
        ValueError: a name that is none, or a value of several lines.
    """
    lines = f"NATS/1.0\r\nNats-Msg-Id: {_value('Nats-Msg-Id', msg_id)}\r\n"
    for name, value in (headers or {}).items():
        if not _is_header_name(name):
            raise ValueError(f"{name!r} is no name for a header; use letters, digits and '-'")
        lines += f"{name}: {_value(name, value)}\r\n"
    return (lines + "\r\n").encode()


def _value(name: str, value: str) -> str:
    if _is_bad_value(value):
        raise ValueError(f"header {name}: the value must be one line")
    return value
