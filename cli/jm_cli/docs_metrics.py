"""``python -m jm_cli.docs_metrics > docs/metrics.md``: every metric, printed from ``jm_nats.telemetry.names``."""

import sys
from collections.abc import Iterator
from typing import Final

from jm_nats.telemetry import names
from jm_nats.telemetry.instruments import SAMPLES_PER_S
from jm_nats.telemetry.names import ATTRIBUTES, By, Kind, Spec, prometheus_name

INTRODUCTION: Final = f"""\
# Metrics

<!-- Printed by `python -m jm_cli.docs_metrics > docs/metrics.md`; a test compares the two. -->

Measured with OpenTelemetry's API by every client, worker and coordinator, as soon as their process has an SDK with a
metrics exporter; without one a measurement is a look at a flag. Names follow OpenTelemetry's messaging conventions
where they have one. The second name is the one in Prometheus' exposition: dots are underscores, the unit and a
counter's `total` come last, and attributes become labels the same way (`jobmaster.lane` is `jobmaster_lane`).

What to know before a query is written:

* `{names.CLUSTER}` is on every measurement, `{names.ROLE}` tells the worker of a process from its coordinator, and
  `{names.WORKER}` the workers of one process, on their gauges. Between processes the resource does
  (`service.instance.id`; `instance` in Prometheus).
* **The leader's** gauges come from the coordinator that leads, from one look every ten seconds, and are gone with its
  term: a deposed leader shows none of them. What cannot be looked at (Postgres or NATS away) is not shown, rather than
  shown as it was. Counters stay with the process that counted: add them up over all of them.
* With several agents each has a leader: jobs that are `due` lie on the master that they share, so take the largest of
  `{names.QUEUE_DEPTH.name}` and `{names.OLDEST_DUE_AGE.name}`, and add up the rest.
* **Histograms that are per job** (`{names.PROCESS_DURATION.name}`, `{names.START_LATENCY.name}`,
  `{names.START_LATENESS.name}`) or per submit hold every value up to {SAMPLES_PER_S} a second and combination of
  attributes, and evenly spread ones above (of a client's flood, some more of the first second). Within a second their
  quantiles are right under any load; over minutes every second counts with {SAMPLES_PER_S} values at most, so that one
  with a thousand late jobs weighs no more than one with a hundred. Their `_count` is not the number of jobs,
  `{names.ATTEMPTS.name}` is.
* A counter that alerts ask for (stalls, violations, lost buckets, stale outcomes, rejected jobs, changes of leaders,
  and quarantined jobs for each route of a worker) is there with 0 from the start, so that its first increase is one.
* Values that outsiders can make up are bounded: after {names.VALUES_MAX} different ones of an attribute the others are
  `{names.OTHER}`.
* A handler with `executor="process"` is measured by its worker; what it measures itself in its child process, a client
  of its own for example, is not, because the child has no SDK.
* Races that are part of normal work are numbers here and no warnings in the log: an outcome that the fence refused is
  `{names.STALE.name}`, a bucket that somebody else adopted first is nothing at all.
"""

TITLES: Final = {
    By.CLIENT: "Clients",
    By.WORKER: "Workers",
    By.BOTH: "Workers and coordinators",
    By.ADOPTER: "Who empties a lost bucket: a worker, or where none lives the leader",
    By.COORDINATOR: "Every coordinator, leading or not",
    By.LEADER: "The leading coordinator",
}


def main() -> None:
    sys.stdout.write(document())


def document() -> str:
    lines = [INTRODUCTION]
    for by, title in TITLES.items():
        lines += [f"## {title}\n", *_table([spec for spec in names.SPECS if spec.by is by]), ""]
    lines += ["## Attributes\n", "| attribute | values |", "| --- | --- |"]
    lines += [f"| `{key}` | {text} |" for key, text in ATTRIBUTES.items()]
    lines += ["", "## Boundaries of the histograms\n", *_boundaries()]
    return "\n".join(lines).rstrip() + "\n"


def _table(specs: list[Spec]) -> Iterator[str]:
    yield "| metric | in Prometheus | kind, unit | attributes | |"
    yield "| --- | --- | --- | --- | --- |"
    for spec in specs:
        attributes = ", ".join(f"`{key}`" for key in spec.attributes)
        kind = f"{spec.kind.value}, {spec.unit}"
        yield f"| `{spec.name}` | `{prometheus_name(spec)}` | {kind} | {attributes} | {spec.description} |"


def _boundaries() -> Iterator[str]:
    by_bounds: dict[tuple[float, ...], list[str]] = {}
    for spec in names.SPECS:
        if spec.kind is Kind.HISTOGRAM:
            by_bounds.setdefault(spec.bounds, []).append(f"`{spec.name}`")
    yield "An SDK's view can set others.\n"
    for bounds, users in by_bounds.items():
        yield f"* {', '.join(users)}: {', '.join(f'{bound:g}' for bound in bounds)}"


if __name__ == "__main__":
    main()
