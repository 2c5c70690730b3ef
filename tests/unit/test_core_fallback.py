from __future__ import annotations

import pytest
from msgspec.structs import replace

from jm_core import fallback
from jm_core.fallback import Kind, Neighbour, Picture
from jm_core.model import BucketKind, WorkerMode, WorkerState
from jm_core.wire import BucketRecord, WorkerRecord

MAIL = Kind("bulk", 2, "mail")
REPORT = Kind("bulk", 2, "report")
ROUTE = ("bulk", 2)
WAITED = {ROUTE: 0.0}


def worker(name, *handlers, running=0, slots=10, mode=WorkerMode.EXECUTION, state=WorkerState.SERVING):
    record = WorkerRecord(name, name, "host", 1, 0.0, slots, [], list(handlers))
    return replace(record, running=running, mode=mode, state=state)


def bucket(owner, lane="bulk", priority=2, *, serves=None):
    record = BucketRecord(f"{owner}-{lane}-{priority}", owner, owner, lane, priority, 1, "active")
    return record if serves is None else replace(record, priority=5, kind=BucketKind.FALLBACK, serves=serves)


def picture(*workers, buckets=()):
    return Picture({one.worker: one for one in workers}, list(buckets))


def ordered(kinds, seen, *, since_s=WAITED, asked=None, silent=(), now_s=200.0):
    found = fallback.orders(kinds, since_s, seen, asked or {}, silent, now_s=now_s, threshold_s=150.0)
    return [(order.worker, [kind.handler for kind in order.kinds]) for order in found]


# -- what is unserved


def test_a_proper_bucket_serves_every_handler():
    seen = picture(worker("a", "other"), buckets=[bucket("a")])
    assert fallback.unserved([MAIL], seen) == []


def test_another_lane_or_priority_does_not_serve():
    seen = picture(worker("a", "mail"), buckets=[bucket("a", "other"), bucket("a", "bulk", 3)])
    assert fallback.unserved([MAIL], seen) == [MAIL]


def test_a_fallback_bucket_serves_only_what_its_worker_knows():
    seen = picture(worker("a", "mail"), buckets=[bucket("a", serves=2)])
    assert fallback.unserved([REPORT, MAIL], seen) == [REPORT]


def test_a_fallback_bucket_for_another_priority_does_not_serve_at_its_own():
    seen = picture(worker("a", "mail"), buckets=[bucket("a", serves=1)])
    assert fallback.unserved([Kind("bulk", 5, "mail")], seen) != []


# -- since when


def test_the_wait_begins_at_the_first_look_and_ends_with_a_proper_bucket():
    empty = picture()
    first = fallback.without_proper({}, [MAIL], empty, [], now_s=5.0)
    assert fallback.without_proper(first, [MAIL], empty, [], now_s=9.0) == {ROUTE: 5.0}
    assert fallback.without_proper(first, [MAIL], picture(worker("a"), buckets=[bucket("a")]), [], now_s=9.0) == {}


def test_what_nobody_waits_for_is_forgotten():
    assert fallback.without_proper(WAITED, [], picture(), [], now_s=9.0) == {}


@pytest.mark.parametrize("status", ["active", "lost", "draining"])
def test_a_fallback_bucket_keeps_the_wait_so_that_its_death_begins_no_second_one(status):
    standing_in = replace(bucket("a", serves=2), status=status)
    assert fallback.without_proper(WAITED, [], picture(), [standing_in], now_s=9.0) == WAITED


# -- who is asked


def test_nobody_is_asked_before_the_threshold():
    seen = picture(worker("a", "mail"))
    assert ordered([MAIL], seen, now_s=149.9) == []
    assert ordered([MAIL], seen, now_s=150.0) == [("a", ["mail"])]


def test_the_least_loaded_that_knows_the_handler_is_asked():
    seen = picture(worker("a", "mail", running=5), worker("b", "mail", running=2), worker("c", "other"))
    assert ordered([MAIL], seen) == [("b", ["mail"])]


def test_load_is_per_slot():
    seen = picture(worker("a", "mail", running=5, slots=5), worker("b", "mail", running=20, slots=100))
    assert ordered([MAIL], seen) == [("b", ["mail"])]


def test_a_tie_is_decided_the_same_way_every_time():
    assert ordered([MAIL], picture(worker("b", "mail"), worker("a", "mail"))) == [("a", ["mail"])]


@pytest.mark.parametrize("mode", [WorkerMode.DRAIN, WorkerMode.COORDINATOR])
def test_who_runs_no_jobs_is_not_asked(mode):
    assert ordered([MAIL], picture(worker("a", "mail", mode=mode))) == []


@pytest.mark.parametrize("state", [state for state in WorkerState if state is not WorkerState.SERVING])
def test_who_takes_no_jobs_now_is_not_asked(state):
    assert ordered([MAIL], picture(worker("a", "mail", state=state))) == []


def test_one_worker_that_knows_both_handlers_serves_both():
    assert ordered([MAIL, REPORT], picture(worker("a", "mail", "report"))) == [("a", ["mail", "report"])]


def test_two_handlers_that_no_one_worker_knows_get_two_buckets():
    seen = picture(worker("a", "mail"), worker("b", "report"))
    assert ordered([MAIL, REPORT], seen) == [("a", ["mail"]), ("b", ["report"])]


def test_who_was_asked_is_asked_again_although_another_has_less_to_do_now():
    seen = picture(worker("a", "mail", running=9), worker("b", "mail"))
    assert ordered([MAIL], seen, asked={ROUTE: {"a"}}) == [("a", ["mail"])]


def test_who_refused_or_was_silent_comes_last():
    seen = picture(worker("a", "mail"), worker("b", "mail", running=9))
    assert ordered([MAIL], seen, silent={"a"}) == [("b", ["mail"])]
    assert ordered([MAIL], picture(worker("a", "mail")), silent={"a"}) == [("a", ["mail"])]


def test_a_handler_that_nobody_knows_does_not_stand_in_another_s_way():
    assert ordered([MAIL, REPORT], picture(worker("a", "report"))) == [("a", ["report"])]


# -- when it is over


def test_a_fallback_bucket_retires_once_a_proper_one_serves_its_lane_and_priority():
    standing_in, elsewhere = bucket("a", serves=2), bucket("a", "other", serves=2)
    seen = picture(worker("a", "mail"), worker("b"), buckets=[standing_in, elsewhere, bucket("b")])
    assert fallback.retired(seen) == [standing_in]


def test_two_fallback_buckets_do_not_make_each_other_retire():
    seen = picture(worker("a"), worker("b"), buckets=[bucket("a", serves=2), bucket("b", serves=2)])
    assert fallback.retired(seen) == []


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], fallback.NOBODY_LIVES),
        ([worker("a", "other")], fallback.NOBODY_KNOWS),
        ([worker("a", "mail", state=WorkerState.DRAINING)], fallback.NOBODY_TAKES),
        ([worker("a", "mail")], fallback.NOBODY_SERVES),
    ],
)
def test_people_are_told_why(workers, reason):
    assert fallback.why(MAIL, picture(*workers)) == reason


# -- other agents


FAR = Neighbour(frozenset({ROUTE}), frozenset({"report"}))
IDLE = Neighbour(frozenset(), frozenset({"mail"}))


@pytest.mark.parametrize(
    ("kind", "workers", "others", "is_theirs"),
    [
        pytest.param(REPORT, [worker("a", "report")], [FAR], True, id="another one serves and knows it"),
        pytest.param(MAIL, [worker("a", "mail")], [FAR], False, id="only ours know it"),
        pytest.param(REPORT, [worker("a", "report")], [], False, id="no other is there"),
        pytest.param(MAIL, [worker("a")], [IDLE], True, id="only theirs know it, and stand in"),
        pytest.param(MAIL, [worker("a")], [FAR], True, id="nobody knows it and another one serves"),
        pytest.param(MAIL, [worker("a")], [Neighbour(frozenset(), frozenset())], False, id="nobody does anything"),
        pytest.param(
            MAIL, [worker("a", "mail")], [FAR, IDLE], False, id="one serves and another one knows it: neither runs it"
        ),
    ],
)
def test_what_another_agent_serves_and_knows_is_left_to_it(kind, workers, others, is_theirs):
    assert fallback.left_to_others(kind, picture(*workers), others) is is_theirs


def test_a_fallback_bucket_retires_for_other_agents_only_when_they_know_all_that_it_runs():
    seen = picture(worker("a", "mail", "report"), buckets=[bucket("a", serves=2)])
    assert fallback.retired(seen, neighbours=[FAR]) == []
    assert fallback.retired(seen, neighbours=[FAR, IDLE]) == []
    knowing = Neighbour(frozenset({ROUTE}), frozenset({"mail"}))
    assert fallback.retired(seen, neighbours=[FAR, knowing]) == list(seen.buckets)
    assert fallback.retired(seen, neighbours=[Neighbour(frozenset({("bulk", 3)}), frozenset({"mail", "report"}))]) == []


def test_what_only_an_agent_that_is_away_knows_waits_for_it():
    assert fallback.waits_for_away(MAIL, picture(worker("a")), [FAR], {"mail"})
    assert not fallback.waits_for_away(MAIL, picture(worker("a", "mail")), [FAR], {"mail"})
    assert not fallback.waits_for_away(MAIL, picture(worker("a")), [IDLE], {"mail"})
    assert not fallback.waits_for_away(MAIL, picture(worker("a")), [FAR], {"report"})
