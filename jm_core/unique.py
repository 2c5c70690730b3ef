"""Unique keys: who holds one, for how long, and what becomes of a job that comes with a key that is held.

A job holds its key while it is unfinished, and with ``unique_for_s`` also for so long after NATS stored it, whatever
became of it. The scope belongs to the job that holds the key, not to the one that comes later: so two that come at the
same time cannot disagree about it. What the newcomer decides is ``on_conflict``.

Who came first is what NATS' time stamps say, never who was read first: batches are saved side by side, and a writer may
be minutes behind.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from jm_core import limits
from jm_core.intake import NewJob
from jm_core.model import JobStatus, OnConflict

SAME_INSTANT_S: Final = 1e-6  # Postgres keeps microseconds


class Clash(Struct, frozen=True):
    """Why a job was not inserted: the row that is there under its id, or the one that holds its key.

    ``existing_id`` None: what was in the way is gone. ``same_queued_at``: of the row with the same id (epoch seconds).
    The rest is of the holder; ``held_until`` None: no longer than it is unfinished.
    """

    existing_id: str | None
    same_queued_at: float | None = None
    status: JobStatus | None = None
    queued_at: float = 0.0
    held_until: float | None = None
    due_in_s: float = 0.0  # by Postgres' clock


class Verdict(StrEnum):
    OURS = "ours"  # saved from this very message: it is recorded
    FREE = "free"  # what was in the way is gone: insert it again
    RELEASE = "release"  # the holder has ended and its window has passed: note that, and insert again
    REPLACE = "replace"  # cancel the holder, and insert again
    DUPLICATE = "duplicate"


def judge(clash: Clash, on_conflict: str | None, *, queued_at: float) -> Verdict:
    """What follows from ``clash`` for a job that NATS stored at ``queued_at`` (epoch seconds)."""
    if clash.same_queued_at is not None:
        ours = abs(clash.same_queued_at - queued_at) < SAME_INSTANT_S
        return Verdict.OURS if ours else Verdict.DUPLICATE
    if clash.existing_id is None or clash.status is None:
        return Verdict.FREE
    if clash.status.is_terminal:
        passed = clash.held_until is None or clash.held_until <= queued_at
        return Verdict.RELEASE if passed else Verdict.DUPLICATE
    if on_conflict == OnConflict.REPLACE and gives_way(clash.status, due_in_s=clash.due_in_s):
        # Of two that want each other's place the one that NATS stored later gets it, in whatever order they are read.
        return Verdict.REPLACE if clash.queued_at <= queued_at + SAME_INSTANT_S else Verdict.DUPLICATE
    return Verdict.DUPLICATE


def gives_way(status: JobStatus, *, due_in_s: float) -> bool:
    """Whether a job that holds a key may be replaced: it waits, and no worker is about to start it."""
    if status is JobStatus.IN_BUCKET:
        return due_in_s > limits.REPLACE_MARGIN_S
    return status is JobStatus.ON_MASTER


def has_keys(messages: Sequence[Sequence[NewJob]]) -> bool:
    return any(job.unique_key is not None for jobs in messages for job in jobs)


def waves(messages: Sequence[Sequence[NewJob]]) -> list[list[list[NewJob]]]:
    """Cut a batch so that no job of it decides about another one in the same statement.

    The first job of each key goes with the first wave, so that it holds the key when the others are judged. Those that
    would replace it go one after the other, as if they had come in batches of their own; all others share a wave.

    Args:
        messages: the jobs of each message of the batch, in the order in which NATS stored them.

    Returns:
        At least one wave; each has a list for every message, as ``messages`` has.
    """
    cut: list[list[list[NewJob]]] = [[[] for _ in messages]]
    last: dict[str, tuple[int, bool]] = {}  # key -> its last wave, and whether more may join that
    for place, jobs in enumerate(messages):
        for job in jobs:
            wave = 0 if job.unique_key is None else _wave_of(job, last)
            while wave >= len(cut):
                cut.append([[] for _ in messages])
            cut[wave][place].append(job)
    return cut


def _wave_of(job: NewJob, last: dict[str, tuple[int, bool]]) -> int:
    assert job.unique_key is not None
    wave, open_ = last.get(job.unique_key, (-1, False))
    replaces = job.on_conflict == OnConflict.REPLACE
    if replaces or not open_:
        wave += 1
    last[job.unique_key] = (wave, wave > 0 and not replaces)
    return wave
