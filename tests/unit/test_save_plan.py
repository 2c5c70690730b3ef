from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from jm_core import limits
from jm_core.ids import BucketId, JobId, Lane
from jm_core.intake import NewJob
from jm_core.model import Priority
from jm_core.placement import Share
from jm_core.save_plan import SECOND_NOW, due_second, group_jobs, message_ranges, parts_of

T0 = datetime(2030, 1, 1, tzinfo=UTC)
NOW_S = T0.timestamp()


def new_job(n=0, **fields):
    given = {"handler": "h", "run_at": None, "lane": "default", "priority": Priority.MEDIUM, "args": b"{}"} | fields
    return NewJob(
        JobId(f"id{n}"),
        given["handler"],
        given["args"],
        given["run_at"],
        Lane(given["lane"]),
        given["priority"],
        4,
        300.0,
        metadata=given.get("metadata"),
    )


def grouped(*messages):
    return group_jobs(messages, now_s=NOW_S, threshold_s=600.0)


def test_like_jobs_stand_together_and_know_their_message():
    groups = grouped([new_job(0), new_job(1, handler="x")], [new_job(2)])
    assert [[job.id for job in group.jobs] for group in groups] == [["id0", "id2"], ["id1"]]
    assert [group.messages for group in groups] == [[1, 2], [1]]


@pytest.mark.parametrize("field", [{"lane": "l"}, {"priority": Priority.HIGH}, {"handler": "x"}])
def test_jobs_that_go_elsewhere_stand_apart(field):
    assert len(grouped([new_job(0), new_job(1, **field)])) == 2


@pytest.mark.parametrize(
    ("due_in_s", "second"),
    [
        (-1e6, SECOND_NOW),
        (0, SECOND_NOW),
        (limits.SCHEDULE_LEAD_S, SECOND_NOW),
        (limits.SCHEDULE_LEAD_S + 0.6, int(NOW_S) + 2),
        (600, int(NOW_S) + 600),
        (600.1, None),
    ],
)
def test_each_due_time_has_its_second(due_in_s, second):
    assert due_second(NOW_S + due_in_s, NOW_S, 600.0) == second


def test_later_jobs_are_grouped_by_second():
    jobs = [new_job(n, run_at=T0 + timedelta(seconds=s)) for n, s in enumerate((10.1, 10.9, 11.0, 3600, 7200))]
    assert [(group.second, len(group.jobs)) for group in grouped(jobs)] == [
        (int(NOW_S) + 10, 2),
        (int(NOW_S) + 11, 1),
        (None, 2),
    ]


def test_shares_are_cut_into_messages_and_the_rest_waits():
    pack = limits.PACK_JOBS
    (group,) = grouped([new_job(n) for n in range(3 * pack)])
    parts = parts_of(group, [Share(BucketId("a"), 2 * pack + 50), Share(BucketId("b"), 50)], 3 * pack)
    assert [(part.lo, part.hi, part.bucket) for part in parts] == [
        (0, pack, "a"),
        (pack, 2 * pack, "a"),
        (2 * pack, 2 * pack + 50, "a"),
        (2 * pack + 50, 2 * pack + 100, "b"),
        (2 * pack + 100, 3 * pack, None),
    ]


def test_a_message_stays_within_its_bytes():
    (group,) = grouped([new_job(n, args=b"x" * limits.ARGS_BYTES_MAX) for n in range(10)])
    ranges = message_ranges(group, 0, 10)
    assert [hi - lo for lo, hi in ranges] == [3, 3, 3, 1]
    assert ranges[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def test_metadata_counts_as_json_may_write_it():
    (group,) = grouped([new_job(n, metadata={"k": "\n" * 8_000}) for n in range(30)])
    assert len(message_ranges(group, 0, 30)) > 1
