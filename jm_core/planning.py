"""Which occurrences of a schedule become jobs, which are skipped and why, and when to look again. Pure.

Everything follows from the instants of the expression, never from the moment somebody looked (BR-069): the next instant
is the one after the last that was decided. Vocabulary: ``jm_core.api_schedules``.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final, Protocol

from msgspec import Struct

from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, SkipReason

GRACE_S: Final = 30.0
"""An instant that is decided no later than this is on time: a change of leaders is no gap. Otherwise all instants up to
now are one gap, for the misfire policy."""
AHEAD_SHARE: Final = 1.5  # of the transient threshold: so far ahead is planned, at least AHEAD_MIN_S
LEAD_SHARE: Final = 1.1  # a plan that reaches less far is continued
AHEAD_MIN_S: Final = 60.0  # more than a change of leaders takes
LEAD_MIN_S: Final = 45.0
COUNT_MAX: Final = 12_000  # missed instants counted one by one: eight days of minutes; then `more`
SEARCH_MAX: Final = 2_000
UNLIMITED: Final = 1_000_000_000
JITTER_BITS: Final = 62

assert 1 < LEAD_SHARE < AHEAD_SHARE
assert LEAD_MIN_S < AHEAD_MIN_S


class Instants(Protocol):
    """The part of a recurrence that planning needs."""

    def after(self, instant: datetime) -> datetime | None:
        """The first instant strictly after; None: never again."""
        ...


class Rules(Struct, frozen=True):
    """What a schedule says about planning, besides its expression."""

    misfire: MisfirePolicy = MisfirePolicy.RUN_ONCE
    misfire_limit: int = 10
    misfire_window_s: float | None = None
    overlap: OverlapPolicy = OverlapPolicy.ALLOW
    has_unique_key: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_runs: int | None = None

    @property
    def at_instant(self) -> bool:
        """Whether an instant can be decided only when it has come: its outcome depends on what is unfinished then."""
        return self.overlap is not OverlapPolicy.ALLOW or self.has_unique_key


class Progress(Struct, frozen=True):
    """How far a schedule is planned.

    ``blocker``: id of an unfinished job of it, where its overlap policy asks. ``left_out``: instants that are neither
    to be made a job nor to be skipped, because that has been decided.
    """

    since: datetime  # of its creation or last change: no instant until then counts
    next_at: datetime | None = None  # the first instant not decided; None: never looked at
    floor_at: datetime | None = None
    floor_reason: SkipReason | None = None
    queued: datetime | None = None
    left_out: frozenset[datetime] = frozenset()
    blocker: str | None = None
    runs: int = 0
    is_done: bool = False


class Reach(Struct, frozen=True):
    """How far and how much to plan in one go."""

    ahead_s: float  # from now; for what need not be decided at the instant
    lead_s: float  # what is planned should reach at least so far
    jobs_max: int
    count_max: int = COUNT_MAX


def reach_for(threshold_s: float, *, jobs_max: int, count_max: int = COUNT_MAX) -> Reach:
    """So that what may lie in buckets is always planned: ``threshold_s`` is how early a job may get there."""
    ahead_s = max(AHEAD_SHARE * threshold_s, AHEAD_MIN_S)
    return Reach(ahead_s, max(LEAD_SHARE * threshold_s, LEAD_MIN_S), jobs_max, count_max)


class Skip(Struct, frozen=True):
    """``count`` instants from ``first_at`` to ``last_at``; ``more``: at least so many."""

    reason: SkipReason
    first_at: datetime
    last_at: datetime
    count: int = 1
    detail: str = ""
    more: bool = False


class Plan(Struct, frozen=True):
    """The decision. ``plan_at`` None with ``is_done``: never again."""

    instants: list[datetime]  # that become jobs, in order
    skips: list[Skip]
    next_at: datetime | None
    plan_at: datetime | None
    queued: datetime | None
    is_done: bool
    steps: int  # what it cost, in instants looked at


def decide(
    rules: Rules,
    progress: Progress,
    instants: Instants,
    *,
    now: datetime,
    reach: Reach,
    id_of: Callable[[datetime], str],
) -> Plan:
    """One schedule's plan, from its first undecided instant on.

    Args:
        now: the master's clock (Postgres), read once.
        id_of: the job id of an occurrence; the detail of a skip names it when it is in the way of the next.

    Returns:
        At most ``reach.jobs_max`` jobs, or as many as the misfire policy makes up for; where that cuts it short,
        ``plan_at`` is ``now``.

    Raises:
        whatever the recurrence raises: the caller disables this schedule alone.
    """
    return _Planner(rules, progress, instants, now=now, reach=reach, id_of=id_of).plan()


class _Planner:
    """The steps of one decision; lives for one call."""

    def __init__(
        self,
        rules: Rules,
        progress: Progress,
        instants: Instants,
        *,
        now: datetime,
        reach: Reach,
        id_of: Callable[[datetime], str],
    ) -> None:
        self._rules = rules
        self._progress = progress
        self._counted = _Counted(instants, progress.left_out)
        self._now = now
        self._reach = reach
        self._id_of = id_of
        self._jobs: list[datetime] = []
        self._skips: list[Skip] = []
        self._queued = progress.queued
        self._blocker = progress.blocker

    def plan(self) -> Plan:
        self._release_queued()
        if self._progress.is_done:
            return self._result(None)
        upcoming = self._progress.next_at or self._first()
        upcoming = self._skip_to_floor(upcoming)
        upcoming = self._catch_up(upcoming)
        while upcoming is not None and upcoming <= self._until and self._has_room():
            self._take(upcoming)
            upcoming = self._after(upcoming)
        return self._result(upcoming)

    @property
    def _until(self) -> datetime:
        return self._now if self._rules.at_instant else self._now + timedelta(seconds=self._reach.ahead_s)

    def _first(self) -> datetime | None:
        """A definition begins when it is made, or with its start if that is later: nothing is made up for."""
        since, starts_at = self._progress.since, self._rules.starts_at
        return self._after(since if starts_at is None or starts_at <= since else just_before(starts_at))

    def _after(self, instant: datetime) -> datetime | None:
        found = self._counted.after(instant)
        ends_at = self._rules.ends_at
        return None if found is None or (ends_at is not None and found > ends_at) else found

    # Instants that have passed.

    def _skip_to_floor(self, upcoming: datetime | None) -> datetime | None:
        floor_at, reason = self._progress.floor_at, self._progress.floor_reason
        if floor_at is None or upcoming is None or upcoming > floor_at:
            return upcoming
        if reason is not None:
            self._skip_range(reason, upcoming, floor_at)
        return self._after(floor_at)

    def _catch_up(self, upcoming: datetime | None) -> datetime | None:
        """Apply the misfire policy where nobody planned for a while; on time, instants are taken as they come."""
        if upcoming is None or (self._now - upcoming).total_seconds() <= GRACE_S:
            return upcoming
        newest = self._newest_missed(upcoming)
        before = newest[0] if newest else None
        self._skip_range(SkipReason.MISFIRE, upcoming, self._now, before=before)
        for instant in newest:
            self._take(instant)
        return self._after(self._now)

    def _newest_missed(self, first: datetime) -> list[datetime]:
        rules = self._rules
        wanted = {MisfirePolicy.SKIP: 0, MisfirePolicy.RUN_ONCE: 1, MisfirePolicy.RUN_ALL: rules.misfire_limit}
        count = min(wanted[rules.misfire], self._runs_left())
        if rules.misfire_window_s is not None:
            first = max(first, self._now - timedelta(seconds=rules.misfire_window_s))
        until = self._now if rules.ends_at is None else min(self._now, rules.ends_at)
        return newest(self._counted, first, until, count)

    def _skip_range(
        self, reason: SkipReason, first: datetime, until: datetime, *, before: datetime | None = None
    ) -> None:
        """Record the instants from ``first`` to ``until``, or only those before ``before``."""
        count, last, more = 0, first, False
        upcoming: datetime | None = first
        while upcoming is not None and upcoming <= until and (before is None or upcoming < before):
            if count >= self._reach.count_max:
                last, more = before or until, True
                break
            count, last = count + 1, upcoming
            upcoming = self._after(upcoming)
        if count:
            self._skips.append(Skip(reason, first, last, count, first.isoformat(), more))

    # Instants that become jobs.

    def _has_room(self) -> bool:
        return len(self._jobs) < self._reach.jobs_max and self._runs_left() > 0

    def _runs_left(self) -> int:
        if self._rules.max_runs is None:
            return UNLIMITED
        return self._rules.max_runs - self._progress.runs - len(self._jobs) - (self._queued is not None)

    def _take(self, instant: datetime) -> None:
        if self._rules.overlap is OverlapPolicy.ALLOW or self._blocker is None:
            self._make(instant)
        elif self._rules.overlap is OverlapPolicy.QUEUE_ONE and self._queued is None:
            self._queued = instant
        else:
            self._skips.append(Skip(SkipReason.OVERLAP, instant, instant, detail=self._blocker))

    def _make(self, instant: datetime) -> None:
        self._jobs.append(instant)
        if self._rules.overlap is not OverlapPolicy.ALLOW:
            self._blocker = self._id_of(instant)

    def _release_queued(self) -> None:
        if self._queued is not None and self._blocker is None:
            queued, self._queued = self._queued, None
            self._make(queued)

    def _result(self, upcoming: datetime | None) -> Plan:
        is_done = self._progress.is_done or upcoming is None or self._runs_left() <= 0
        plan_at = None
        if not is_done and upcoming is not None:
            lead = timedelta(0) if self._rules.at_instant else timedelta(seconds=self._reach.lead_s)
            plan_at = max(upcoming - lead, self._now)
        return Plan(self._jobs, merged(self._skips), upcoming, plan_at, self._queued, is_done, self._counted.steps)


class _Counted:
    """A recurrence without what is left out, which counts how often it was asked."""

    def __init__(self, instants: Instants, left_out: frozenset[datetime]) -> None:
        self._instants = instants
        self._left_out = left_out
        self.steps = 0

    def after(self, instant: datetime) -> datetime | None:
        self.steps += 1
        found = self._instants.after(instant)
        while found is not None and found in self._left_out:
            self.steps += 1
            found = self._instants.after(found)
        return found


def newest(instants: Instants, first: datetime, until: datetime, count: int) -> list[datetime]:
    """The last ``count`` instants from ``first`` to ``until`` (both included), in order; fewer if there are no more.

    Looks back over twice the time until enough are in it: a thousand years of seconds cost no more than a minute of
    them.
    """
    if count <= 0 or first > until:
        return []
    span = timedelta(minutes=1)
    enough = max(SEARCH_MAX, 2 * count)
    too_short = timedelta(0)
    while True:
        begin = max(first, until - span)
        found = _some(instants, begin, until, enough + 1)
        if len(found) > enough and span - too_short > timedelta(seconds=1):
            span = (span + too_short) / 2  # a dense stretch after a long rest: come closer from the other side
        elif len(found) >= count or begin == first:
            return found[-count:]
        else:
            too_short = span
            span = min(2 * span, until - first)


def _some(instants: Instants, begin: datetime, until: datetime, at_most: int) -> list[datetime]:
    found: list[datetime] = []
    for instant in _from(instants, begin):
        if instant > until or len(found) >= at_most:
            break
        found.append(instant)
    return found


def _from(instants: Instants, begin: datetime) -> Iterator[datetime]:
    upcoming = instants.after(just_before(begin))
    while upcoming is not None:
        yield upcoming
        upcoming = instants.after(upcoming)


def upcoming(instants: Instants, after: datetime, count: int, *, until: datetime | None = None) -> list[datetime]:
    """The next ``count`` instants strictly after ``after``, none beyond ``until``."""
    found: list[datetime] = []
    instant = instants.after(after)
    while instant is not None and len(found) < count and (until is None or instant <= until):
        found.append(instant)
        instant = instants.after(instant)
    return found


def just_before(instant: datetime) -> datetime:
    """So that ``after`` of it includes ``instant`` itself."""
    return instant - timedelta(microseconds=1)


def merged(skips: list[Skip]) -> list[Skip]:
    """One for each reason and detail: what Postgres keeps as one row must come as one."""
    kept: dict[tuple[SkipReason, str], Skip] = {}
    for skip in skips:
        key = (skip.reason, skip.detail)
        before = kept.get(key)
        if before is None:
            kept[key] = skip
        else:
            first_at, last_at = min(before.first_at, skip.first_at), max(before.last_at, skip.last_at)
            count, more = before.count + skip.count, before.more or skip.more
            kept[key] = Skip(skip.reason, first_at, last_at, count, skip.detail, more)
    return list(kept.values())


def due_at(instant: datetime, job_id: str, jitter_s: float) -> datetime:
    """When the job of an occurrence is due: its instant, delayed by a share of ``jitter_s`` that its id decides."""
    if not jitter_s:
        return instant
    share = (int(job_id.replace("-", ""), 16) & (1 << JITTER_BITS) - 1) / (1 << JITTER_BITS)
    return instant + timedelta(seconds=share * jitter_s)
