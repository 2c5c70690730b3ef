"""Who stands in where due jobs have nobody who serves their lane and priority. DESIGN 7.

Every decision is made again from the registry, so that a new leader comes to the same one: a fallback bucket that is
there is seen, whoever asked for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from jm_core.model import BucketKind, WorkerMode, WorkerState
from jm_core.wire import BucketRecord, WorkerRecord

ASKED_S: Final = 15.0  # for so long a worker that was asked is asked again, and no other
NOBODY_LIVES: Final = "no worker is alive"
NOBODY_KNOWS: Final = "no live worker knows the handler"
NOBODY_TAKES: Final = "the workers that know the handler take no new jobs now"
NOBODY_HERE: Final = "only workers of an agent that is away know the handler"
NOBODY_SERVES: Final = "no worker serves this lane and priority"
_RUNS_JOBS: Final = {WorkerMode.EXECUTION, WorkerMode.FULL}

Route = tuple[str, int]  # lane, priority


class Kind(Struct, frozen=True, order=True):
    lane: str
    priority: int
    handler: str

    @property
    def route(self) -> Route:
        return self.lane, self.priority


class Picture(Struct, frozen=True):
    """The registry at one moment. ``buckets`` are those that take jobs: active, their worker alive."""

    workers: Mapping[str, WorkerRecord]
    buckets: Sequence[BucketRecord]

    def proper_routes(self) -> set[Route]:
        return {(b.lane, b.priority) for b in self.buckets if b.kind == BucketKind.PROPER}

    def fallbacks(self) -> list[BucketRecord]:
        return [bucket for bucket in self.buckets if bucket.kind == BucketKind.FALLBACK]

    def knows(self, handler: str) -> bool:
        return any(handler in worker.handlers for worker in self.workers.values())

    def is_served(self, kind: Kind) -> bool:
        """A proper bucket takes every handler's jobs (one that nobody knows is quarantined there, in sight)."""
        return kind.route in self.proper_routes() or any(
            serves(bucket, kind.route) and kind.handler in self.workers[bucket.worker].handlers
            for bucket in self.fallbacks()
        )


class Neighbour(Struct, frozen=True):
    """Another agent whose leader lives: what its workers serve by proper buckets, and which handlers they know."""

    routes: frozenset[Route]
    handlers: frozenset[str]

    def runs(self, kind: Kind) -> bool:
        return kind.route in self.routes and kind.handler in self.handlers


class Order(Struct, frozen=True):
    """Ask ``worker`` for a fallback bucket; ``kinds`` are what it would serve."""

    worker: str
    route: Route
    kinds: tuple[Kind, ...]


def serves(bucket: BucketRecord, route: Route) -> bool:
    return (bucket.lane, bucket.serves_priority) == route


def unserved(kinds: Iterable[Kind], picture: Picture) -> list[Kind]:
    """Of the kinds that have due jobs on the master, those that no bucket takes, in order."""
    return sorted(kind for kind in kinds if not picture.is_served(kind))


def without_proper(
    before: Mapping[Route, float], due: Iterable[Kind], picture: Picture, known: Iterable[BucketRecord], *, now_s: float
) -> dict[Route, float]:
    """Since when each lane and priority that is wanted has had no proper bucket.

    Wanted is what has due jobs, and what has a fallback bucket in whatever state: when that one's worker dies, the jobs
    that it held must not wait all over again.

    Args:
        known: every bucket of the registry.
    """
    wanted = {kind.route for kind in due}
    wanted |= {(b.lane, b.serves_priority) for b in known if b.kind == BucketKind.FALLBACK}
    return {route: before.get(route, now_s) for route in wanted - picture.proper_routes()}


def orders(
    kinds: Sequence[Kind],
    since_s: Mapping[Route, float],
    picture: Picture,
    asked: Mapping[Route, Collection[str]],
    silent: Collection[str] = (),
    *,
    now_s: float,
    threshold_s: float,
) -> list[Order]:
    """Which workers to ask for a fallback bucket: as few as know all the handlers that have waited long enough.

    Args:
        kinds: the unserved ones.
        asked: workers that were asked lately and whose bucket is not there yet. They are asked again (done already is
            done), so that no second one opens the same bucket.
        silent: workers that lately refused or did not answer: they come last.
    """
    found: list[Order] = []
    for route in sorted({kind.route for kind in kinds}):
        if now_s - since_s.get(route, now_s) >= threshold_s:
            mine = [kind for kind in kinds if kind.route == route]
            found += _orders_of(route, mine, picture, asked.get(route, ()), silent)
    return found


def _orders_of(
    route: Route, kinds: list[Kind], picture: Picture, asked: Collection[str], silent: Collection[str]
) -> list[Order]:
    found: list[Order] = []
    left = kinds
    while left:
        worker = _best(left[0].handler, picture, asked, silent)
        if worker is None:
            left = left[1:]
            continue
        knows = picture.workers[worker].handlers
        found.append(Order(worker, route, tuple(kind for kind in left if kind.handler in knows)))
        left = [kind for kind in left if kind.handler not in knows]
    return found


def _best(handler: str, picture: Picture, asked: Collection[str] = (), silent: Collection[str] = ()) -> str | None:
    """One that was asked already before others, then the least loaded; the name decides a tie."""
    able = [name for name, worker in picture.workers.items() if takes(worker) and handler in worker.handlers]
    ranked = ((name in silent, name not in asked, load(picture.workers[name]), name) for name in able)
    return min(ranked)[-1] if able else None


def takes(worker: WorkerRecord) -> bool:
    return worker.mode in _RUNS_JOBS and worker.state == WorkerState.SERVING


def load(worker: WorkerRecord) -> float:
    """Jobs in its hands per slot."""
    return (worker.running + worker.held) / max(worker.slots, 1)


def retired(picture: Picture, off: Collection[int] = (), neighbours: Collection[Neighbour] = ()) -> list[BucketRecord]:
    """Fallback buckets whose time is over: a proper one is there, here or at other agents that know all that it could
    run, or their priority was switched off.
    """
    proper = picture.proper_routes()
    return [
        bucket
        for bucket in picture.fallbacks()
        if (bucket.lane, bucket.serves_priority) in proper
        or bucket.serves_priority in off
        or _is_outdone(bucket, picture, neighbours)
    ]


def _is_outdone(bucket: BucketRecord, picture: Picture, neighbours: Collection[Neighbour]) -> bool:
    known = [other.handlers for other in neighbours if (bucket.lane, bucket.serves_priority) in other.routes]
    mine = picture.workers[bucket.worker].handlers
    return bool(known) and frozenset[str]().union(*known).issuperset(mine)


def left_to_others(kind: Kind, picture: Picture, neighbours: Collection[Neighbour]) -> bool:
    """Whether other agents see to it. What our workers know is ours, unless another one both serves and knows it: one
    that only serves its lane and priority leaves it lying, because ours know it.
    """
    if picture.knows(kind.handler):
        return any(other.runs(kind) for other in neighbours)
    return any(kind.route in other.routes or kind.handler in other.handlers for other in neighbours)


def waits_for_away(
    kind: Kind, picture: Picture, neighbours: Collection[Neighbour], remembered: Collection[str]
) -> bool:
    """Whether it waits for an agent that is away: nobody else takes what only that one's workers know.

    Args:
        remembered: handlers of other agents, those away included.
    """
    known = picture.knows(kind.handler) or any(kind.handler in other.handlers for other in neighbours)
    return not known and kind.handler in remembered


def has_candidate(kind: Kind, picture: Picture) -> bool:
    return _best(kind.handler, picture) is not None


def why(kind: Kind, picture: Picture) -> str:
    """For people."""
    if not picture.workers:
        return NOBODY_LIVES
    if not picture.knows(kind.handler):
        return NOBODY_KNOWS
    return NOBODY_SERVES if has_candidate(kind, picture) else NOBODY_TAKES
