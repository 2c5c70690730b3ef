import pytest

from jm_core.errors import InvalidNameError, JmError
from jm_nats.subjects import Names, is_inbox, parse_handler_name, parse_inbox_prefix

NAMES = Names("prod")
# BR-224's list: every one of them would be another subject, several subjects, or a line of the protocol.
HOSTILE = ["a.b", "a b", "*", ">", "a.*", "", ".", "a.", ".a", "a\r\nPUB x 0", "a\n", "$JS.API.STREAM.DELETE.X"]
HOSTILE += ["x" * 41, "x" * 300, "ünï", "../x", "a/b", "a\\b", "web:1", "pod~1", "::1", "node&1", "a\x00"]
TAKES_A_PART = [
    NAMES.bucket_stream,
    NAMES.run,
    NAMES.ctl,
    NAMES.sched_any,
    NAMES.events,
    NAMES.api,
    NAMES.worker_rpc,
    lambda part: NAMES.sched(part, 1),
    lambda part: NAMES.sched("b1", part),
]


def test_names_are_those_of_the_contract():
    assert NAMES.pending_stream == "JM_prod_PENDING"
    assert NAMES.submit == "jm.prod.submit"
    assert NAMES.bucket_stream("b1") == "JM_prod_B_b1"
    assert NAMES.run("b1") == "jm.prod.bucket.b1.run"
    assert NAMES.sched("b1", 17) == "jm.prod.bucket.b1.sched.17"
    assert NAMES.sched("b1", "018f-a") == "jm.prod.bucket.b1.sched.018f-a"
    assert NAMES.sched_any("b1") == "jm.prod.bucket.b1.sched.*"
    assert NAMES.ctl("b1") == "jm.prod.bucket.b1.ctl"
    assert NAMES.events_stream == "JM_prod_EVENTS"
    assert NAMES.events("b1") == "jm.prod.events.b1"
    assert NAMES.events_all == "jm.prod.events.*"
    assert (NAMES.workers_kv, NAMES.buckets_kv, NAMES.cluster_kv) == (
        "jm_prod_workers",
        "jm_prod_buckets",
        "jm_prod_cluster",
    )
    assert NAMES.api("get") == "jm.prod.api.get"
    assert NAMES.worker_rpc("w-1") == "jm.prod.worker.w-1.rpc"
    assert NAMES.wake == "jm.prod.wake"


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("take", [Names, *TAKES_A_PART])
def test_a_part_outside_the_pattern_is_refused_everywhere(take, part):
    with pytest.raises(InvalidNameError) as refused:
        take(part)
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, JmError)
    assert "[A-Za-z0-9_-]{1,40}" in str(refused.value)
    assert refused.value.name == part


def test_the_longest_legal_part_is_taken_as_it_is():
    longest = "A" * 20 + "z-_9" * 5
    assert Names(longest).run(longest) == f"jm.{longest}.bucket.{longest}.run"


def test_case_matters():
    assert NAMES.run("A") != NAMES.run("a")


@pytest.mark.parametrize("cluster", ["a_B", "a_B_b", "_B", "_B_"])
def test_a_cluster_whose_streams_could_be_anothers_bucket_is_refused(cluster):
    # JM_a_B_PENDING: the front door of "a_B", or the bucket "PENDING" of "a"?
    with pytest.raises(InvalidNameError, match="without '_B_'"):
        Names(cluster)


def test_no_two_clusters_share_a_stream():
    parts = ["a", "b", "B", "_", "a_", "_b", "B_", "_B_", "_B", "a_B", "a_B_b", "b_B", "PENDING", "EVENTS", "-"]
    owners: dict[str, tuple[str, str]] = {}
    for cluster in parts:
        try:
            names = Names(cluster)
        except InvalidNameError:
            continue
        streams = {names.pending_stream: "", names.events_stream: ""} | {names.bucket_stream(b): b for b in parts}
        for stream, bucket in streams.items():
            assert stream not in owners, (stream, owners[stream], cluster, bucket)
            owners[stream] = (cluster, bucket)


def test_a_handler_may_have_dots_because_it_is_never_a_subject():
    assert parse_handler_name("billing.invoice.send-v2") == "billing.invoice.send-v2"
    for name in ["", "a b", "x" * 101, "a*", "ü"]:
        with pytest.raises(InvalidNameError):
            parse_handler_name(name)


@pytest.mark.parametrize("subject", ["_INBOX.a", "_INBOX.k7Gq2.recorded", "_INBOX_alice.x.y", "_INBOX." + "x" * 248])
def test_a_receipt_goes_to_an_inbox(subject):
    assert is_inbox(subject)


@pytest.mark.parametrize(
    "subject",
    [
        *("", ".", "_INBOX", "_INBOX.", "_INBOX..a", "_INBOX.*", "_INBOX.>", "_INBOX.a b", "_INBOX.a\r\nPUB x 0"),
        *("_INBOX.ä", "orders.new", "jm.shop.submit", "$JS.API.STREAM.PURGE.JM_shop_PENDING", "_INBOX." + "x" * 249),
    ],
)
def test_a_receipt_goes_nowhere_else(subject):
    assert not is_inbox(subject)


@pytest.mark.parametrize("prefix", ["_INBOX", "_INBOX_worker", "_INBOX.shop.client", "_INBOX" + "x" * 94])
def test_answers_may_be_sent_below_a_legal_inbox_prefix(prefix):
    assert is_inbox(f"{parse_inbox_prefix(prefix)}.{'x' * 22}.{'y' * 32}")


@pytest.mark.parametrize("prefix", ["", "inbox", "_inbox", "_INBOX.", "_INBOX..a", "_INBOX.*", "_INBOX.>", "_INBOX a"])
def test_what_is_no_inbox_prefix_is_refused(prefix):
    with pytest.raises(InvalidNameError, match="inbox prefix"):
        parse_inbox_prefix(prefix)


def test_an_inbox_prefix_leaves_room_for_what_follows_it():
    with pytest.raises(InvalidNameError, match="at most 100"):
        parse_inbox_prefix("_INBOX" + "x" * 95)
