"""What stands in a KV and is none of ours is None, whatever it is."""

import pytest

from jm_core import kv_records, wire
from jm_core.cluster import DEFAULT, ClusterMode, ClusterSettings
from jm_core.lease import LeaderRecord
from jm_core.model import BucketStatus
from jm_core.retry import Fixed

FOREIGN = {
    "an acknowledgement of JetStream": b'{"stream":"JM_prod_PENDING", "seq":12,"duplicate": true}',
    "an error of JetStream": b'{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404}}',
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "no JSON": b"garbage!",
    "another JSON": b"[1]",
    "a text that ends too early": b'{"holder": "x',
    "text that is no UTF-8": b'{"holder": "\xff", "bucket": "\xff", "worker": "\xff"}',
    "too deep": b"[" * 100_000,
    "too deep inside": b'{"revision":1,"x":' + b"[" * 100_000,
}
READERS = {
    "bucket": lambda value: kv_records.bucket_at("b", value),
    "worker": lambda value: kv_records.worker_at("w", value),
    "handler": kv_records.handler_at,
    "leader": kv_records.leader_at,
    "settings": kv_records.settings_at,
    "fingerprint": kv_records.fingerprint_at,
}
BUCKET = wire.BucketRecord("b", "w", "i", "default", 3, 1, BucketStatus.ACTIVE)
WORKER = wire.WorkerRecord("w", "i", "h", 1, 0.0, 1, [], [])
DEFAULTS = wire.HandlerDefaults("default", "medium", 3, 60.0, Fixed(1.0))
PASSIVE = ClusterSettings(mode=ClusterMode.PASSIVE, revision=2)


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_not_ours_is_none_and_never_raises(reader, value):
    assert reader(value) is None


@pytest.mark.parametrize(
    ("reader", "record"),
    [
        ("bucket", BUCKET),
        ("worker", WORKER),
        ("handler", DEFAULTS),
        ("leader", LeaderRecord("c1", 7)),
        ("settings", PASSIVE),
        ("settings", DEFAULT),
    ],
    ids=["bucket", "worker", "handler", "leader", "settings", "settings that were never set"],
)
def test_what_we_write_is_read(reader, record):
    assert READERS[reader](wire.encode(record)) == record


def test_a_record_under_another_s_key_is_not_ours():
    assert kv_records.bucket_at("other", wire.encode(BUCKET)) is None
    assert kv_records.worker_at("other", wire.encode(WORKER)) is None


def test_a_fingerprint_is_a_word():
    assert kv_records.fingerprint_at(b"0123456789abcdef") == "0123456789abcdef"
