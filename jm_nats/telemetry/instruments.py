"""The instruments, made from the table in ``names``.

Counters are sums of our own that are shown when somebody collects: an SDK's ``add`` takes 5 to 10 µs, a job a few
dozen. Gauges are what their owner says now, and are gone with it: what a deposed leader last said must not stay. Only
histograms have no such way; who records often takes samples (``Sampler``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from jm_nats.telemetry import names
from jm_nats.telemetry.active import Active
from jm_nats.telemetry.names import Kind, Spec
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

log = logging.getLogger("jobmaster.telemetry")

Attributes = tuple[tuple[str, str], ...]
Values = dict[Attributes, float]

SAMPLES_PER_S: Final = 100
MAIN_AGENT: Final = "main"

_meter: Final = metrics.get_meter("jobmaster")
_lock: Final = threading.RLock()  # a board's end, at any moment of a thread, takes its gauges away


# -- whose measurement it is


class Group(NamedTuple):
    """A worker or a coordinator, of which a process may have several."""

    cluster: str
    role: str
    worker: str = ""
    agent: str = MAIN_AGENT


NOBODY: Final = Group("", "")
_group: Final[ContextVar[Group]] = ContextVar("jobmaster_group", default=NOBODY)


def enter_group(group: Group) -> None:
    """From here on what this task measures, and what is started by it, is of ``group``."""
    _group.set(group)


@contextmanager
def as_group(group: Group) -> Iterator[None]:
    """For what is not called by a task of the group: another thread, or a client that serves another cluster."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def current_group() -> Group:
    return _group.get()


def attributes_of(group: Group, spec: Spec) -> Attributes:
    """Those that every measurement of ``group`` has."""
    pairs = [(names.CLUSTER, group.cluster)] if group.cluster else []
    if group.agent != MAIN_AGENT:
        pairs.append((names.AGENT, group.agent))
    if group.role and names.ROLE in spec.attributes:
        pairs.append((names.ROLE, group.role))
    if group.worker and names.WORKER in spec.attributes:
        pairs.append((names.WORKER, group.worker))
    return tuple(pairs)


_seen: Final[defaultdict[str, set[str]]] = defaultdict(set)


def bounded(key: str, value: str) -> str:
    """``value``, or ``_OTHER`` where this process has seen enough different ones of that attribute."""
    seen = _seen[key]
    if value in seen:
        return value
    if len(seen) >= names.VALUES_MAX:
        return names.OTHER
    seen.add(value)
    return value


# -- counters


class Counter:
    """Sums by attributes, since the process began."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._sums: dict[Attributes, int] = defaultdict(int)
        self._kept: list[tuple[Group, Attributes, Kept]] = []
        _meter.create_observable_counter(spec.name, [self.observe], spec.unit, spec.description)

    def add(self, count: int, attributes: Attributes = ()) -> None:
        """From any thread. 0 makes the series visible, so that its first increase can be seen."""
        if Active.metering:
            key = attributes_of(_group.get(), self.spec) + attributes
            with _lock:
                self._sums[key] += count

    def count_all_of(self, kept: Kept, attributes: Attributes) -> None:
        """Besides what is added: how many values ``kept`` has been given."""
        group = _group.get()
        with _lock:
            self._kept.append((group, attributes_of(group, self.spec) + attributes, kept))

    def forget(self, group: Group) -> None:
        """It has ended: what was kept of it is added up."""
        with _lock:
            for owner, attributes, kept in self._kept:
                if owner == group:
                    self._sums[attributes] += kept.total
            self._kept = [entry for entry in self._kept if entry[0] != group]

    def observe(self, _: object = None) -> Iterator[Observation]:
        with _lock:
            sums = defaultdict(int, self._sums)
            for _, attributes, kept in self._kept:
                sums[attributes] += kept.total
        for attributes, total in sums.items():
            yield Observation(total, dict(attributes))


# -- histograms


class Histogram:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._instrument = _meter.create_histogram(
            spec.name, spec.unit, spec.description, explicit_bucket_boundaries_advisory=list(spec.bounds)
        )

    def record(self, value: float, attributes: Attributes = ()) -> None:
        if Active.metering:
            self._instrument.record(max(value, 0.0), dict(attributes_of(_group.get(), self.spec) + attributes))

    def kept(self, attributes: Attributes) -> Kept:
        """For what is recorded more often than an SDK should be called."""
        group = _group.get()
        kept = Kept(self._instrument, dict(attributes_of(group, self.spec) + attributes))
        with _lock:
            _kept[group].append(kept)
        return kept

    def sampled(self, attributes: Attributes) -> Sampled:
        return Sampled(self._instrument, dict(attributes_of(_group.get(), self.spec) + attributes))


class Kept:
    """A histogram's values of one combination of attributes, kept for a second: what a job pays is an ``append``. Of
    more than ``SAMPLES_PER_S`` a second so many are recorded, evenly spread. Used by its group's thread alone.
    """

    __slots__ = ("_attributes", "_flushed", "_instrument", "values")

    def __init__(self, instrument: metrics.Histogram, attributes: Mapping[str, str]) -> None:
        self._instrument = instrument
        self._attributes = attributes
        self._flushed = 0
        self.values: list[float] = []

    @property
    def total(self) -> int:
        return self._flushed + len(self.values)

    def flush(self) -> None:
        with _lock:  # whoever collects must not see a total that is less than it was
            values, self.values = self.values, []
            self._flushed += len(values)
        if len(values) > SAMPLES_PER_S:
            values = [values[n * len(values) // SAMPLES_PER_S] for n in range(SAMPLES_PER_S)]
        for value in values:
            self._instrument.record(max(value, 0.0), self._attributes)


_kept: Final[defaultdict[Group, list[Kept]]] = defaultdict(list)


def flush(group: Group) -> Iterator[None]:
    """Once a second, by the group's own thread. Between two steps others may have their turn: one takes up to a
    millisecond.
    """
    for kept in list(_kept.get(group, ())):
        if kept.values:
            kept.flush()
            yield


def forget(group: Group) -> None:
    """At its end, by its own thread: record what is left, and hold nothing for it any more. Its sums stay."""
    for _ in flush(group):
        pass
    for each in _counters.values():
        each.forget(group)
    with _lock:
        _kept.pop(group, None)


class Sampled:
    """A histogram's values of one combination of attributes: every one up to ``SAMPLES_PER_S`` a second, every n-th
    where there are more, so that neither the cost nor the shape depends on the load.
    """

    __slots__ = ("_attributes", "_clock", "_instrument", "_seen", "_since_s", "_skip", "_stride", "_taken")

    def __init__(
        self,
        instrument: metrics.Histogram,
        attributes: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instrument = instrument
        self._attributes = attributes
        self._clock = clock
        self._since_s = clock()
        self._seen = self._taken = self._skip = 0
        self._stride = 1

    def record(self, value: float) -> None:
        if self._is_taken():
            self._instrument.record(max(value, 0.0), self._attributes)

    def _is_taken(self) -> bool:
        now_s = self._clock()
        if (elapsed_s := now_s - self._since_s) >= 1.0:
            # By what came since: after a quiet time every one counts again.
            self._stride = max(1, int(self._seen / elapsed_s / SAMPLES_PER_S))
            self._since_s, self._seen, self._taken, self._skip = now_s, 0, 0, 0
        self._seen += 1
        if self._skip:
            self._skip -= 1
            return False
        if self._taken >= SAMPLES_PER_S:  # a burst within the second
            self._stride, self._taken = 2 * self._stride, 0
        self._taken += 1
        self._skip = self._stride - 1
        return True


# -- gauges


class Gauges:
    """What one owner says: values that it sets, and questions that are asked at each collection, by the exporter's
    thread. Nothing of it is shown any more once it is closed.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._said: dict[str, Values] = {}
        self._asked: dict[str, Callable[[], Values]] = {}

    def open(self) -> None:
        with _lock:
            _owners.append(self)

    def close(self) -> None:
        """Safe to repeat."""
        with _lock:
            if self in _owners:
                _owners.remove(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, spec: Spec, value: float, attributes: Attributes = ()) -> None:
        with _lock:
            self._said.setdefault(spec.name, {})[attributes] = value

    def say_all(self, spec: Spec, values: Values) -> None:
        """These and no others."""
        with _lock:
            self._said[spec.name] = dict(values)

    def ask(self, spec: Spec, question: Callable[[], float]) -> None:
        self._asked[spec.name] = lambda: {(): question()}

    def ask_all(self, spec: Spec, question: Callable[[], Values]) -> None:
        self._asked[spec.name] = question

    def values_of(self, spec: Spec) -> Values:
        with _lock:
            values = dict(self._said.get(spec.name, ()))
        if spec.name in self._asked:
            values |= self._asked[spec.name]()
        own = attributes_of(self._group, spec)
        return {own + attributes: value for attributes, value in values.items()}


_owners: Final[list[Gauges]] = []


class Gauge:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        _meter.create_observable_gauge(spec.name, [self.observe], spec.unit, spec.description)

    def observe(self, _: object = None) -> Iterable[Observation]:
        """An owner that cannot answer, while it starts or ends perhaps, must not hide the others."""
        with _lock:
            owners = list(_owners)
        found: list[Observation] = []
        for owner in owners:
            try:
                values = owner.values_of(self.spec)
            except Exception as error:  # noqa: BLE001 - whatever its question raises
                trouble(log, "a gauge cannot be asked", {"gauge": self.spec.name, "problem": repr(error)})
                continue
            found += [Observation(value, dict(attributes)) for attributes, value in values.items()]
        return found


# -- all of them

_counters: Final = {spec.name: Counter(spec) for spec in names.SPECS if spec.kind is Kind.COUNTER}
_histograms: Final = {spec.name: Histogram(spec) for spec in names.SPECS if spec.kind is Kind.HISTOGRAM}
_gauges: Final = {spec.name: Gauge(spec) for spec in names.SPECS if spec.kind is Kind.GAUGE}


def counter(spec: Spec) -> Counter:
    return _counters[spec.name]


def histogram(spec: Spec) -> Histogram:
    return _histograms[spec.name]


def gauge(spec: Spec) -> Gauge:
    return _gauges[spec.name]
