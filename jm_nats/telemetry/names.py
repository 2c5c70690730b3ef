"""Every name of a metric, with what there is to know of it. docs/metrics.md is printed from here.

Instruments are made from this table alone (``instruments``), so that a name cannot be anywhere else. By OpenTelemetry's
messaging conventions where they have one, else ``jobmaster.*``.
"""

from enum import StrEnum
from typing import Final, NamedTuple

# -- attributes

CLUSTER: Final = "jobmaster.cluster"
ROLE: Final = "jobmaster.role"
WORKER: Final = "jobmaster.worker"
AGENT: Final = "jobmaster.agent"
HANDLER: Final = "jobmaster.handler"
LANE: Final = "jobmaster.lane"
PRIORITY: Final = "jobmaster.priority"
OUTCOME: Final = "jobmaster.outcome"
STATE: Final = "jobmaster.state"
STAGE: Final = "jobmaster.stage"
STALL: Final = "jobmaster.stall"
HEALTH: Final = "jobmaster.health"
STORE: Final = "jobmaster.store"
DUTY: Final = "jobmaster.duty"
SCHEDULE: Final = "jobmaster.schedule"
REASON: Final = "jobmaster.reason"
INVARIANT: Final = "jobmaster.invariant"
ERROR_TYPE: Final = "error.type"
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"

OTHER: Final = "_OTHER"  # OpenTelemetry's word for what is beyond the bound
VALUES_MAX: Final = 100  # different values of one attribute that outsiders can make up, in a process

ATTRIBUTES: Final = {
    CLUSTER: "on every metric: one process may serve several clusters",
    ROLE: "`worker` or `coordinator`: one process may be both",
    WORKER: "worker id; on gauges only, so that no histogram is multiplied by it",
    AGENT: "on what a coordinator measures, only where the agent has a name other than `main`",
    HANDLER: f"one that the worker has; the first {VALUES_MAX} of a process, then `{OTHER}`",
    LANE: f"the first {VALUES_MAX} of a process, then `{OTHER}`; in what the leader says of its queues the "
    f"{VALUES_MAX} that have workers or wait longest now. What is `{OTHER}` in one process may have its name in "
    "another: a query that joins two of them leaves it out",
    PRIORITY: "`very_low`, `low`, `medium`, `high`, `critical`",
    OUTCOME: "`succeeded`, `failed`, `timed_out`, `cancelled`, `interrupted`",
    STATE: "of jobs: `due` (on the master), `in_bucket`, `processing`; of buckets: their status, `fallback` for an "
    "active one that stands in for others",
    STAGE: "`save` (front door to Postgres), `record` (outcomes to Postgres)",
    STALL: "`loop` (the event loop stood still for more than 1 s), `handler_blocks` (and a handler was caught at a "
    "heartbeat; one that blocks for a few seconds may get away), `heartbeat_withheld` (it stands still for so long "
    "that the worker is given up), `pull` (a standing pull request was not heard of and is made anew), `no_progress` "
    "(a loop that must succeed now and then has not: the group is unhealthy)",
    HEALTH: "`healthy`, `degraded`, `unhealthy`",
    STORE: "`nats`, `postgres`",
    DUTY: "name of a leader's duty",
    SCHEDULE: f"name of the schedule; the first {VALUES_MAX} of a process that were skipped, then `{OTHER}` (`jm "
    "schedule skips` names each)",
    REASON: "`misfire`, `overlap`, `duplicate`, `paused`, `disabled`, `inactive`, `cancelled`",
    INVARIANT: "name of the invariant (docs/architecture.md, section 7)",
    ERROR_TYPE: "only where something failed: the exception's class, `timed_out`, `child_died`, `result_unstorable`; "
    f"the first {VALUES_MAX} of a process, then `{OTHER}`",
    SYSTEM: "`jobmaster`",
    OPERATION: "`submit`, `receive` or `process`",
}

# -- boundaries of histograms

OPERATION_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30)
LATENESS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600,
)  # fmt: skip
BATCH: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Kind(StrEnum):
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class By(StrEnum):
    """Who measures it. A coordinator that does not lead says nothing of what is the leader's."""

    CLIENT = "client"
    WORKER = "worker"
    COORDINATOR = "coordinator"
    LEADER = "leader"
    BOTH = "worker, coordinator"
    ADOPTER = "worker, leader"


class Spec(NamedTuple):
    name: str
    kind: Kind
    unit: str
    by: By
    attributes: tuple[str, ...]  # besides CLUSTER, and a coordinator's AGENT
    description: str
    bounds: tuple[float, ...] = ()


_ATTEMPT: Final = (HANDLER, LANE, PRIORITY, OUTCOME, ERROR_TYPE)
_ROUTE: Final = (LANE, PRIORITY)


def _counter(name: str, unit: str, by: By, attributes: tuple[str, ...], description: str) -> Spec:
    return Spec(name, Kind.COUNTER, unit, by, attributes, description)


def _gauge(name: str, unit: str, by: By, attributes: tuple[str, ...], description: str) -> Spec:
    return Spec(name, Kind.GAUGE, unit, by, attributes, description)


def _histogram(  # noqa: PLR0917 - a row of the table
    name: str, unit: str, by: By, attributes: tuple[str, ...], description: str, bounds: tuple[float, ...] = LATENESS_S
) -> Spec:
    return Spec(name, Kind.HISTOGRAM, unit, by, attributes, description, bounds)


# -- the client's

SENT: Final = _counter(
    "messaging.client.sent.messages", "{message}", By.CLIENT, (SYSTEM, OPERATION, ERROR_TYPE), "Jobs submitted"
)
SUBMIT_DURATION: Final = _histogram(
    "messaging.client.operation.duration", "s", By.CLIENT, (SYSTEM, OPERATION, ERROR_TYPE),
    "Of a submit: until NATS has stored its message, of one job or of hundreds", OPERATION_S,
)  # fmt: skip

# -- the worker's

CONSUMED: Final = _counter(
    "messaging.client.consumed.messages", "{message}", By.WORKER, (SYSTEM, OPERATION, *_ROUTE),
    "Jobs taken from buckets, repeated deliveries too",
)  # fmt: skip
PROCESS_DURATION: Final = _histogram(
    "messaging.process.duration", "s", By.WORKER, (SYSTEM, OPERATION, *_ATTEMPT),
    "Run time of attempts (a sample above 100 a second and combination of attributes)",
)  # fmt: skip
ATTEMPTS: Final = _counter("jobmaster.attempts", "{attempt}", By.WORKER, _ATTEMPT, "Attempts ended, every one")
QUARANTINED: Final = _counter(
    "jobmaster.jobs.quarantined", "{job}", By.WORKER, _ROUTE,
    "Jobs that could not be called: no such handler, or arguments that do not fit",
)  # fmt: skip
START_LATENCY: Final = _histogram(
    "jobmaster.start.latency", "s", By.WORKER, _ROUTE,
    "From the submit (stored in NATS) of a job that is due at once to its first start (sampled as run times are)",
)  # fmt: skip
START_LATENESS: Final = _histogram(
    "jobmaster.start.lateness", "s", By.WORKER, _ROUTE,
    "From the due time of an attempt, a retry's too, to its start (sampled as run times are). What was interrupted or "
    "lost and starts again has none: its due time is that of the attempt before",
)  # fmt: skip
SLOTS: Final = _gauge("jobmaster.slots", "{slot}", By.WORKER, (WORKER,), "Slots that the worker has")
RUNNING: Final = _gauge("jobmaster.slots.running", "{slot}", By.WORKER, (WORKER,), "Slots in which a handler runs")
HELD: Final = _gauge("jobmaster.jobs.held", "{job}", By.WORKER, (WORKER,), "Jobs that are here and not started")
HEARTBEAT_LATENESS: Final = _histogram(
    "jobmaster.heartbeat.lateness", "s", By.WORKER, (), "How late after its time a heartbeat was acknowledged by NATS"
)
FETCH_AGE: Final = _gauge(
    "jobmaster.fetch.age", "s", By.WORKER, (WORKER, *_ROUTE),
    "Since NATS last answered a pull of a bucket, with a message or, every 5 s, a sign of life; per route the oldest",
)  # fmt: skip
EVENTS_WAITING: Final = _gauge(
    "jobmaster.events.waiting", "{event}", By.WORKER, (WORKER,), "Outcomes and other reports not yet stored in NATS"
)
CLOCK_OFFSET: Final = _gauge(
    "jobmaster.clock.offset", "s", By.WORKER, (WORKER,), "NATS' clock less the worker's; due times are corrected by it"
)
ADOPTION_DURATION: Final = _histogram(
    "jobmaster.adoption.duration", "s", By.ADOPTER, (ROLE,),
    "From the moment a bucket was declared lost until it was drained",
)  # fmt: skip

# -- of both

LOOP_LAG: Final = _histogram(
    "jobmaster.loop.lag", "s", By.BOTH, (ROLE,), "How late the event loop ran a timer, looked at once a second"
)
STALLS: Final = _counter("jobmaster.stalls", "{stall}", By.BOTH, (ROLE, STALL), "Stall watchdogs that fired")
CONNECTED: Final = _gauge(
    "jobmaster.connected", "{connection}", By.BOTH, (ROLE, WORKER, STORE), "1 while the store can be reached, else 0"
)
GROUP_HEALTH: Final = _gauge(
    "jobmaster.group.health", "{level}", By.BOTH, (ROLE, WORKER), "0 healthy, 1 degraded, 2 unhealthy or halted"
)
VIOLATIONS: Final = _counter(
    "jobmaster.invariant.violations", "{violation}", By.BOTH, (ROLE, INVARIANT), "Invariants found broken, by name"
)

# -- every coordinator's

LEADER: Final = _gauge("jobmaster.leader", "{leader}", By.COORDINATOR, (), "1 while this coordinator leads, else 0")
LEADERSHIP_CHANGES: Final = _counter(
    "jobmaster.leadership.changes", "{term}", By.COORDINATOR, (), "Terms of leadership that this coordinator began"
)

# -- the leader's

LEADERSHIP_TERM: Final = _gauge(
    "jobmaster.leadership.term", "{number}", By.LEADER, (),
    "Number of the term that this coordinator leads in: each new leader's, a restarted process' too, is higher",
)  # fmt: skip
DEPTH_MAX: Final = 100_000
QUEUE_DEPTH: Final = _gauge(
    "jobmaster.queue.depth", "{job}", By.LEADER, (*_ROUTE, STATE),
    f"Jobs that wait or run, counted up to {DEPTH_MAX:,}: of a kind (lane, priority, handler) for `due`, "
    f"all kinds together up to {2 * DEPTH_MAX:,}, shared evenly; of an agent for the others. What is not due yet "
    "counts in buckets only",
)  # fmt: skip
OLDEST_DUE_AGE: Final = _gauge(
    "jobmaster.queue.oldest_due_age", "s", By.LEADER, _ROUTE,
    "For how long the oldest due job that is not running has been due, or where it has run since, has been back; 0: "
    "none waits",
)  # fmt: skip
PENDING: Final = _gauge(
    "jobmaster.pending", "{message}", By.LEADER, (), "Messages in the front door that are not yet in Postgres"
)
EVENTS_PENDING: Final = _gauge(
    "jobmaster.events.pending", "{message}", By.LEADER, (), "Messages of reports that are not yet in Postgres"
)
BATCH_SIZE: Final = _histogram(
    "jobmaster.writer.batch.size", "{item}", By.LEADER, (STAGE,), "Jobs, or events, of one transaction", BATCH
)
WRITER_LAG: Final = _histogram(
    "jobmaster.writer.lag",
    "s",
    By.LEADER,
    (STAGE,),
    "From a message stored in NATS to its commit; per batch, its oldest",
)
ASSIGN_DURATION: Final = _histogram(
    "jobmaster.assign.duration", "s", By.LEADER, (),
    "Of one pass of the assigner: from asking what waits until what is due lies in buckets",
)  # fmt: skip
OUTBOX_SIZE: Final = _gauge("jobmaster.outbox.size", "{message}", By.LEADER, (), "Run messages not yet published")
SAVED: Final = _counter("jobmaster.jobs.saved", "{job}", By.LEADER, (), "Jobs committed to the master")
REJECTED: Final = _counter("jobmaster.jobs.rejected", "{job}", By.LEADER, (), "Jobs refused by the writer")
DUPLICATES: Final = _counter(
    "jobmaster.jobs.duplicates", "{job}", By.LEADER, (), "Submissions of a job that was already there"
)
DISPATCHED: Final = _counter("jobmaster.jobs.dispatched", "{job}", By.LEADER, (), "Jobs put into buckets")
STALE: Final = _counter("jobmaster.outcomes.stale", "{outcome}", By.LEADER, (), "Reports refused by the dispatch fence")
BUCKETS: Final = _gauge("jobmaster.buckets", "{bucket}", By.LEADER, (STATE,), "Buckets in the registry")
BUCKETS_LOST: Final = _counter("jobmaster.buckets.lost", "{bucket}", By.LEADER, (), "Buckets declared lost")
WORKERS: Final = _gauge(
    "jobmaster.workers", "{worker}", By.LEADER, (HEALTH,), "Live workers, by what they say they are"
)
PLANNED: Final = _counter("jobmaster.schedules.planned", "{job}", By.LEADER, (), "Jobs made by schedules")
PLANNER_LAG: Final = _histogram(
    "jobmaster.schedules.lag", "s", By.LEADER, (), "How late after its time a schedule was looked at"
)
DISABLED: Final = _counter(
    "jobmaster.schedules.disabled", "{schedule}", By.LEADER, (), "Schedules disabled because they could not be planned"
)
SKIPPED: Final = _counter(
    "jobmaster.schedules.skipped", "{instant}", By.LEADER, (SCHEDULE, REASON),
    "Instants of schedules that did not become a job",
)  # fmt: skip
DUTY_SUCCEEDED: Final = _gauge(
    "jobmaster.duty.succeeded", "s", By.LEADER, (DUTY,),
    "When a duty of the leader last completed a pass, or where it has not yet in this term, when the term began, as "
    "Unix time; every duty passes once a minute at least",
)  # fmt: skip
REMOVED: Final = _counter("jobmaster.retention.removed", "{job}", By.LEADER, (), "Ended jobs removed by retention")
UNSERVED: Final = _gauge(
    "jobmaster.kinds.unserved", "{kind}", By.LEADER, (), "Kinds (lane, priority, handler) with due jobs and no worker"
)

SPECS: Final[tuple[Spec, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Spec))


def prometheus_name(spec: Spec) -> str:
    """As the exporter for Prometheus writes it: dots are underscores, the unit and a counter's ``total`` come last."""
    name = spec.name.replace(".", "_")
    if spec.unit == "s":
        name += "_seconds"
    return f"{name}_total" if spec.kind is Kind.COUNTER else name
