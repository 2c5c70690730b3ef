"""What our own processes keep in the KVs, read with suspicion: a value that is not ours is None, and never raises.

Anybody who may publish at all can have JetStream write into a KV: it sends its acknowledgement to whatever reply
subject the publisher names, without asking for that user's rights. So each reader takes what it cannot read for
absent and goes on, and whoever the key belongs to writes it again by compare-and-set. One bad byte must not stop a
cluster.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from jm_core.cluster import ClusterSettings, decode_settings
from jm_core.lease import LeaderRecord
from jm_core.wire import (
    BucketRecord,
    HandlerDefaults,
    WorkerRecord,
    decode_bucket,
    decode_handler_defaults,
    decode_worker,
)

T = TypeVar("T")

# Text that is not UTF-8 is a ValueError, what is nested too deeply a RecursionError.
NOT_READ: Final = (msgspec.DecodeError, ValueError, RecursionError)

_decode_leader = msgspec.json.Decoder(LeaderRecord).decode
_is_fingerprint = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


class _Stamp(msgspec.Struct):
    revision: int = 0


_decode_stamp = msgspec.json.Decoder(_Stamp).decode


def bucket_at(key: str, value: bytes) -> BucketRecord | None:
    record = _read(decode_bucket, value)
    return record if record is not None and record.bucket == key else None


def worker_at(key: str, value: bytes) -> WorkerRecord | None:
    record = _read(decode_worker, value)
    return record if record is not None and record.worker == key else None


def handler_at(value: bytes) -> HandlerDefaults | None:
    return _read(decode_handler_defaults, value)


def leader_at(value: bytes) -> LeaderRecord | None:
    return _read(_decode_leader, value)


def settings_at(value: bytes) -> ClusterSettings | None:
    """Every field has a default, so that any object would read as an active cluster with nothing disabled: what we
    write has a revision, or is empty (nothing was ever set).
    """
    stamp = _read(_decode_stamp, value)
    if stamp is None or (stamp.revision < 1 and bytes(value).strip() != b"{}"):
        return None
    return _read(decode_settings, value)


def fingerprint_at(value: bytes) -> str | None:
    """Of a NATS store (``agent_identity``)."""
    text = value.decode("ascii", errors="replace")
    return text if _is_fingerprint(text) else None


def _read(decode: Callable[[bytes], T], value: bytes) -> T | None:
    try:
        return decode(value)
    except NOT_READ:
        return None
