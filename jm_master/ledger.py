"""How much lies in each bucket, and what more it may be given. In the leader's memory; seeded from Postgres.

It need not be exact: it decides where jobs go, never whether they are safe. Jobs for later are counted apart, by the
second in which they are due: they lie in the bucket's stream, not in the worker, and must not use up the credit of
jobs that are due now.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from jm_core import limits
from jm_core.ids import BucketId, Lane, WorkerId
from jm_core.model import WEIGHTS, BucketKind, Priority
from jm_core.placement import BucketLoad, Share, WorkerLoad, bucket_credit, eligible, shared_out, smoothed_rate, split
from jm_master.registry_view import RegistryView
from jm_master.wake import Pulse

RATE_WINDOW_S: Final = 0.05
RUN_WEIGHT: Final = 0.2  # of the newest report in the smoothed run time
SILENT_AFTER_S: Final = 0.25  # without an outcome for so long a rate is seen to decay
LATER_HORIZON_S: Final = 2.0  # what is due within this counts as due now
PRUNE_S: Final = 60.0


class _Account(Struct):
    due: int = 0
    later: Counter[int] = field(default_factory=Counter)


class _Rate(Struct):
    """What one worker gets done. Jobs that end together must not look like jobs that are quick: hence ``run_s``."""

    # Nothing is known of it yet: enough for a first burst of short jobs to go straight into a bucket, little enough
    # that a first burst of long ones is soon rebalanced.
    per_s: float = limits.RATE_PRIOR_PER_S
    since_s: float = 0.0
    finished: int = 0  # since then
    run_s: float = 0.0  # smoothed run time of a job

    def add(self, count: int, run_s: float | None, now_s: float) -> None:
        self.finished += count
        if run_s is not None:
            self.run_s += RUN_WEIGHT * (run_s - self.run_s) if self.run_s else run_s
        elapsed_s = now_s - self.since_s
        if elapsed_s >= RATE_WINDOW_S:
            self.per_s = smoothed_rate(self.per_s, self.finished, elapsed_s)
            self.since_s, self.finished = now_s, 0
        else:
            self.per_s = max(self.per_s, self.finished / RATE_WINDOW_S)

    def seen_at(self, now_s: float, *, slots: int, is_busy: bool) -> float:
        """Jobs per second, as far as the slots can bear it. Without an outcome for a while it decays, unless there is
        nothing to do: that says nothing about how fast the worker is.
        """
        silent_s = now_s - self.since_s
        decays = is_busy and silent_s >= SILENT_AFTER_S
        per_s = smoothed_rate(self.per_s, self.finished, silent_s) if decays else self.per_s
        return min(per_s, self.ceiling(slots))

    def ceiling(self, slots: int) -> float:
        return slots / self.run_s if self.run_s else math.inf


_UNKNOWN: Final = _Rate()


class Ledger:
    """Times are monotonic seconds, except ``second`` and ``wall_s``, which are of the epoch."""

    def __init__(self, view: RegistryView) -> None:
        self.freed = Pulse()  # credit came back
        self.backlogs: set[tuple[str, int]] = set()  # (lane, priority) with due jobs that wait for credit
        self._view = view
        self._accounts: dict[str, _Account] = {}
        self._rates: dict[str, _Rate] = {}
        self._moved_at_s = float("-inf")
        self._pruned_at_s = 0.0

    def seed(self, counts: Iterable[tuple[str, int, int]]) -> None:
        """Start from what Postgres says: (bucket, due second or 0, jobs)."""
        self._accounts.clear()
        for bucket, second, count in counts:
            account = self._account(bucket)
            if second:
                account.later[second] += count
            else:
                account.due += count

    def offer(
        self,
        lane: str,
        priority: Priority,
        handler: str,
        count: int,
        *,
        later: bool,
        now_s: float,
        newcomers: bool = False,
    ) -> list[Share]:
        """How many of ``count`` jobs each bucket may be given. Reserves nothing.

        Args:
            later: for jobs that are due in some seconds to minutes; they are bounded by a count of their own.
            newcomers: jobs that are not saved yet: where older ones wait on the master they get half of what is free,
                so that neither overtakes the other for long.
        """
        loads = self._fitting(lane, priority, handler)
        if later:
            free = {load.bucket: limits.CREDIT_MAX - self._account(load.bucket).later.total() for load in loads}
        else:
            free = {load.bucket: self._credit(load, now_s) for load in loads}
            free = shared_out(free, {load.bucket: load.worker for load in loads})
        if newcomers and (lane, priority) in self.backlogs:
            free = {bucket: (credit + 1) // 2 for bucket, credit in free.items()}
        return split(count, free)

    def capacity_per_s(self, lane: str, priority: Priority, handler: str) -> float:
        """Jobs per second that the workers in question could bear by how long theirs run; infinite while one of them
        has not shown that yet.
        """
        workers = {load.worker for load in self._fitting(lane, priority, handler)}
        return sum(self._rates.get(worker, _UNKNOWN).ceiling(self._view.slots_of(worker)) for worker in workers)

    def buckets_for(self, lane: str, priority: Priority, handler: str) -> frozenset[str]:
        return frozenset(load.bucket for load in self._fitting(lane, priority, handler))

    def has_bucket(self, lane: str, priority: Priority) -> bool:
        return bool(self._view.route(lane, priority))

    def give(self, bucket: str, count: int, *, second: int = 0, now_s: float) -> None:
        """``count`` jobs are on their way into ``bucket``; with ``second``, to be due then."""
        account = self._account(bucket)
        if second:
            account.later[second] += count
            return
        account.due += count
        self._moved_at_s = now_s
        worker = self._view.worker_of(bucket)
        if worker and not self._outstanding(worker, but=bucket) and account.due == count:
            # It was idle: its rate is measured from now, not from its last job long ago.
            self._rates.setdefault(worker, _Rate()).since_s = now_s

    def take_back(self, bucket: str, count: int, *, second: int = 0) -> None:
        """They did not go there after all, or came back without having run."""
        account = self._account(bucket)
        if second:
            account.later[second] -= count
        else:
            account.due = max(0, account.due - count)
        self.freed.beat()

    def settle(self, bucket: str, worker: str, count: int, *, run_s: float | None, now_s: float) -> None:
        """``count`` outcomes of ``bucket`` are recorded; ``run_s`` is how long one of them ran, if it ran."""
        account = self._account(bucket)
        account.due = max(0, account.due - count)
        self._moved_at_s = now_s
        self._rates.setdefault(worker, _Rate(since_s=now_s - RATE_WINDOW_S)).add(count, run_s, now_s)
        self.freed.beat()

    def mature(self, *, wall_s: float) -> None:
        """Count as due what is due by now. Cheap when nothing is; call it before offers."""
        if abs(wall_s - self._pruned_at_s) > PRUNE_S:
            self._pruned_at_s = wall_s
            self._prune()
        horizon = wall_s + LATER_HORIZON_S
        for account in self._accounts.values():
            if account.later:
                for second in [s for s in account.later if s <= horizon]:
                    account.due += account.later.pop(second)

    def forget(self, bucket: str) -> None:
        self._accounts.pop(bucket, None)

    def _prune(self) -> None:
        """Workers and buckets come and go; what is kept of them must not grow for ever."""
        self._rates = {worker: rate for worker, rate in self._rates.items() if worker in self._view.workers}
        self._accounts = {
            bucket: account
            for bucket, account in self._accounts.items()
            if bucket in self._view.buckets or account.due or account.later.total() > 0
        }

    def progress_age_s(self, *, now_s: float) -> float:
        """Since when nothing was dispatched and nothing ended."""
        return now_s - self._moved_at_s

    def outstanding(self) -> Mapping[str, int]:
        """Jobs due now by bucket, for logs and tests."""
        return {bucket: account.due for bucket, account in self._accounts.items() if account.due}

    def _account(self, bucket: str) -> _Account:
        account = self._accounts.get(bucket)
        if account is None:
            account = self._accounts[bucket] = _Account()
        return account

    def _outstanding(self, worker: str, *, but: str = "") -> int:
        return sum(self._account(b).due for b in self._view.buckets_of(worker) if b != but)

    def _fitting(self, lane: str, priority: Priority, handler: str) -> list[BucketLoad]:
        loads = [
            BucketLoad(
                BucketId(bucket.bucket),
                WorkerId(bucket.worker),
                Lane(lane),
                priority,
                self._account(bucket.bucket).due,
                self._view.handlers_of(bucket.worker),
                bucket.kind == BucketKind.FALLBACK,
            )
            for bucket in self._view.route(lane, priority)
        ]
        found = eligible(loads, Lane(lane), priority, handler)
        if handler in self._view.elsewhere.handlers and not any(handler in load.handlers for load in found):
            return []  # another agent's workers know it: here it would be quarantined
        return found

    def _credit(self, load: BucketLoad, now_s: float) -> int:
        worker = load.worker
        weights = sum(WEIGHTS[p] for p in self._view.priorities_of(worker))
        slots, rate_per_s = self._view.slots_of(worker), self._rate(worker, now_s)
        return bucket_credit(load, WorkerLoad(worker, slots, rate_per_s, self._outstanding(worker)), weights)

    def _rate(self, worker: str, now_s: float) -> float:
        rate, is_busy = self._rates.get(worker, _UNKNOWN), self._outstanding(worker) > 0
        return rate.seen_at(now_s, slots=self._view.slots_of(worker), is_busy=is_busy)
