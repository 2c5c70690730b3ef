"""How long what has ended is kept, and which part of the table is looked at when.

Table ``job`` has no index for this: one more entry for each job would cost every job of the system. Instead the table
is swept, a *chunk* of neighbouring pages at a time, and for each chunk it is noted when it is worth the next visit: not
before the first of its ended jobs may go. With one retention for all, a page is read about once in that time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jm_core import limits
from jm_core.errors import InvalidScheduleError, InvalidSettingError
from jm_core.lengths import length_s
from jm_core.model import JobStatus

JOB_KINDS: Final = tuple(status.label for status in JobStatus if status.is_terminal)
SIDE_KINDS: Final = ("rejected", "buckets", "skips", "actions")
KINDS: Final = (*JOB_KINDS, *SIDE_KINDS)
NEVER: Final = "never"
DEFAULT: Final = "30d"
ACTIONS_DEFAULT_S: Final = 365 * 86_400.0
JOB_KEEP_S_MIN: Final = 60.0  # a message that was handled comes again for so long; then its job must still be known
KEEP_S_MAX: Final = 100 * 366 * 86_400.0
EXAMPLE: Final = "30d succeeded=7d failed=never"

CHUNK_BLOCKS: Final = 64  # 512 KiB: some hundred jobs
STEP_JOBS_MAX: Final = 1_000
SLACK_SHARE: Final = 0.01  # of the shortest retention: a chunk is not visited for every single job that comes of age
SLACK_S_MIN: Final = 30.0
WORK_SHARE: Final = 0.1  # of the time is spent in Postgres at most, as long as the sweep is not behind,
WORK_SHARE_MAX: Final = 0.5  # and when it is far behind: the table must not grow for ever
BEHIND_S_MIN: Final = 5.0  # what counts as one step behind; or SLACK_SHARE of the shortest retention, if that is more
REST_S_MIN: Final = 0.02
REST_S_MAX: Final = 5.0
RESIZE_S_MAX: Final = 60.0  # between two looks at how large the table is
RESIZE_SHARE: Final = 0.1  # of the shortest retention


@dataclass(frozen=True)
class Retention:
    """Seconds by kind (``KINDS``); None: kept for ever."""

    keep_s: Mapping[str, float | None]

    @property
    def of_jobs(self) -> list[float | None]:
        """By status, from ``SUCCEEDED`` on."""
        return [self.keep_s[kind] for kind in JOB_KINDS]

    @property
    def shortest_s(self) -> float | None:
        """Of ended jobs; None: all are kept."""
        return min((keep_s for keep_s in self.of_jobs if keep_s is not None), default=None)


def parse_retention(text: str) -> Retention:
    """``30d`` for all, and ``kind=`` for those that differ: ``30d succeeded=7d failed=never``. What operators did is
    kept for a year unless ``actions=`` says otherwise.

    Raises:
        InvalidSettingError: which word, what is expected.
    """
    keep_s: dict[str, float | None] = {}
    general: list[float | None] = []
    for word in text.replace(",", " ").split():
        kind, equals, amount = word.rpartition("=")
        if not equals:
            if general:
                raise _wrong(word, "a second retention for all")
            general.append(_seconds(amount, word))
        elif kind not in KINDS:
            raise _wrong(word, f"there is no kind {kind[:40]!r}; they are {', '.join(KINDS)}")
        elif kind in keep_s:
            raise _wrong(word, f"{kind} is given twice")
        else:
            keep_s[kind] = _seconds(amount, word)
    for_all = general[0] if general else limits.RETENTION_S
    left_out = dict.fromkeys(KINDS, for_all) | {"actions": ACTIONS_DEFAULT_S}
    found = left_out | keep_s
    for kind in JOB_KINDS:
        kept_s = found[kind]
        if kept_s is not None and kept_s < JOB_KEEP_S_MIN:
            said = f"{kind} jobs would be kept for {kept_s:g} s only"
            raise _wrong(text, f"{said}, and a message that comes twice within {JOB_KEEP_S_MIN:g} s would run twice")
    return Retention(found)


def _seconds(text: str, word: str) -> float | None:
    if text == NEVER:
        return None
    try:
        seconds = float(length_s(text))
    except InvalidScheduleError:
        raise _wrong(word, f"{text[:40]!r} is no duration") from None
    if seconds > KEEP_S_MAX:
        raise _wrong(word, f"that is more than {KEEP_S_MAX:.0f} seconds; write {NEVER}")
    return seconds


def _wrong(word: str, problem: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"retention {word[:60]!r}: {problem}; write it like {EXAMPLE!r} (90s, 10m, 2h, 1d, {NEVER})"
    )


class Sweep:
    """When each chunk of the table is due for a visit. Times are monotonic seconds of the caller."""

    def __init__(self, shortest_s: float, *, position: int = 0) -> None:
        """Args: position: the chunk to begin with, where a sweep before us has stopped."""
        self.position = position
        self._shortest_s = shortest_s
        self._slack_s = max(SLACK_S_MIN, SLACK_SHARE * shortest_s)
        self._behind_s = max(BEHIND_S_MIN, SLACK_SHARE * shortest_s)
        self._due_s: list[float] = []
        self._resized_s = 0.0

    @property
    def chunks(self) -> int:
        return len(self._due_s)

    def resize(self, blocks: int, *, now_s: float) -> None:
        """The table has so many blocks now. What there is at first is looked at once; what has grown since is not older
        than the last look, so that nothing in it can be of age before the shortest retention after that.
        """
        count = math.ceil(blocks / CHUNK_BLOCKS)
        due_s = now_s if not self._due_s else self._resized_s + self._shortest_s
        self._resized_s = now_s
        del self._due_s[count:]
        self._due_s += [due_s] * (count - len(self._due_s))

    def next_chunk(self, *, now_s: float) -> int | None:
        """The next one that is due, from where we are, round and round; None: none is."""
        count = len(self._due_s)
        for offset in range(count):
            chunk = (self.position + offset) % count
            if self._due_s[chunk] <= now_s:
                return chunk
        return None

    def visited(self, chunk: int, *, first_due_in_s: float | None, is_done: bool, now_s: float) -> None:
        """Note a visit.

        Args:
            first_due_in_s: when the first of the ended jobs that are left there may go; None: there is none, or never.
            is_done: False when there was more to do than one visit may.
        """
        if not is_done:
            self.position = chunk
            return
        self.position = chunk + 1 if chunk + 1 < len(self._due_s) else 0
        # A job that is put there just now, or ends just now, has the shortest retention before it.
        wait_s = self._shortest_s if first_due_in_s is None else min(self._shortest_s, first_due_in_s)
        self._due_s[chunk] = now_s + max(wait_s, 0.0) + self._slack_s

    def idle_s(self, *, now_s: float) -> float | None:
        """Until the next chunk is due; None: there are no chunks."""
        return max(0.0, min(self._due_s) - now_s) if self._due_s else None

    def work_share(self, *, now_s: float) -> float:
        """Which share of the time may be spent in Postgres.

        ``WORK_SHARE`` as long as the oldest visit is overdue by little, measured by what is kept: nobody shall feel the
        sweep. Where that does not keep pace with what comes of age, the table would grow without end; so one more
        ``WORK_SHARE`` for each hundredth of the shortest retention that it is overdue.
        """
        overdue_s = now_s - min(self._due_s, default=now_s)
        return min(WORK_SHARE_MAX, max(WORK_SHARE, WORK_SHARE * overdue_s / self._behind_s))


def resize_s(shortest_s: float) -> float:
    """From one look at the size of the table to the next."""
    return min(RESIZE_S_MAX, RESIZE_SHARE * shortest_s)


def rest_s(worked_s: float, share: float = WORK_SHARE) -> float:
    """How long to leave Postgres alone after a step that took so long: the slower it is, the longer."""
    return min(REST_S_MAX, max(REST_S_MIN * WORK_SHARE / share, worked_s * (1 / share - 1)))
