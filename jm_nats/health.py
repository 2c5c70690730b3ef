"""What the loops of one group notice about themselves, kept for the heartbeat and the health port."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from jm_core.errors import JmError
from jm_core.health import Condition, GroupReport, HaltedLoop, LoopState, Trouble, Verdict, judge, stalled
from jm_nats import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_core.health import Invariant

log = logging.getLogger(__name__)

REASON_CHARS_MAX: Final = 300


class HealthBoard:
    """One group's: written by its loops, read by other threads. Every call is a lock and a dict access.

    Args:
        name: of the group, unique in the process.
        kind: ``worker`` or ``coordinator``.
    """

    def __init__(self, name: str, kind: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.kind = kind
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._ended = False
        self._halted: str | None = None
        self._troubles: dict[str, Trouble] = {}
        self._loops: dict[str, LoopState] = {}
        self._halted_loops: dict[str, HaltedLoop] = {}
        self._violations: Counter[str] = Counter()
        self._stalled: frozenset[str] = frozenset()
        self.group = telemetry.Group("", kind)  # whose measurements ours are

    # -- what loops say

    def started(self) -> None:
        """The group does its work now. Said once; from then on it is ready unless it is unhealthy."""
        with self._lock:
            self._started = True

    def ended(self) -> None:
        """The group has ended as it should: nothing is expected of its loops any more."""
        with self._lock:
            self._ended = True

    def trouble(self, name: str, text: str) -> None:
        """``name`` does not work and is being tried again. Its beginning is kept, the text is the newest."""
        with self._lock:
            known = self._troubles.get(name)
            self._troubles[name] = Trouble(name, text, known.since_s if known else self._clock())

    def cleared(self, name: str) -> None:
        """``name`` has worked: a real round trip of that very thing, not the hope of one."""
        if name in self._troubles:  # a look without the lock: nearly always there is none
            with self._lock:
                self._troubles.pop(name, None)

    def cycle(self, name: str, limit_s: float) -> None:
        """Loop ``name`` has succeeded once more; if it does not again within ``limit_s``, the group is unhealthy."""
        with self._lock:
            self._loops[name] = LoopState(name, self._clock(), limit_s)

    def retired(self, name: str) -> None:
        """Loop ``name`` has ended as it should, and its trouble with it: nothing is expected of it any more."""
        with self._lock:
            self._loops.pop(name, None)
            self._troubles.pop(name, None)

    def loop_halted(self, name: str, reason: str) -> None:
        """Loop ``name`` has ended for good, and the group goes on without it."""
        with self._lock:
            self._loops.pop(name, None)
            self._halted_loops[name] = HaltedLoop(name, reason)

    def violated(self, invariant: Invariant, detail: str) -> None:
        """An invariant is broken. The first time it is logged; each time it is counted. Whether that halts the group
        is the caller's decision (``halt``).
        """
        with self._lock:
            self._violations[invariant.value] += 1
            first = self._violations[invariant.value] == 1
        with telemetry.as_group(self.group):
            telemetry.invariant_violated(invariant.value)
        if first:
            facts = {"invariant": invariant.value, "meaning": invariant.meaning, "detail": detail, "group": self.name}
            log.error("invariant violated", extra=facts)

    def halt(self, reason: str, error: BaseException | None = None) -> None:
        """The group has failed stop. Final: the first reason stays, and is logged, with ``error``'s traceback if that
        is given.
        """
        with self._lock:
            first = self._halted is None
            if first:
                self._halted = reason
        if first:
            log.error("halted for good", extra={"group": self.name, "reason": reason}, exc_info=error)

    # -- what others read

    @property
    def is_halted(self) -> bool:
        return self._halted is not None

    def is_in_trouble(self, name: str) -> bool:
        return name in self._troubles

    def verdict(self) -> Verdict:
        """For the heartbeat, which comes by often enough to notice every stall."""
        condition = self._condition()
        self._count_stalls(condition)
        return judge(condition)

    def _count_stalls(self, condition: Condition) -> None:
        """Each once, until its loop has succeeded again."""
        names = frozenset(loop.name for loop in stalled(condition))
        for _ in names - self._stalled:
            with telemetry.as_group(self.group):
                telemetry.stalled("no_progress")
        self._stalled = names

    def report(self) -> GroupReport:
        """For the health port."""
        condition = self._condition()
        verdict = judge(condition)
        with self._lock:
            violations, started = dict(self._violations), self._started
        return GroupReport(
            self.name,
            self.kind,
            verdict.health,
            started=started,
            halted=condition.halted is not None,
            reasons=verdict.reasons,
            violations=violations,
            loop_ages_s={loop.name: round(condition.now_s - loop.succeeded_s, 1) for loop in condition.loops},
        )

    def _condition(self) -> Condition:
        with self._lock:
            if self._ended and self._halted is None:
                return Condition(self._clock())
            return Condition(
                self._clock(),
                self._halted,
                tuple(self._troubles.values()),
                tuple(self._loops.values()),
                tuple(self._halted_loops.values()),
            )


def describe(error: BaseException) -> str:
    """One line for a reason: the first error of a group, without what may follow its first line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = (str(error).splitlines() or [""])[0][:REASON_CHARS_MAX]
    return text if isinstance(error, JmError) and text else f"{type(error).__name__}: {text}"
