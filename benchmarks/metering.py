"""What metrics cost: the lifecycle with OpenTelemetry's SDK in coordinator and worker, and without, in turn.

python -m benchmarks.metering --json

Said in CPU time a job of the two processes, which another load on the machine disturbs less than jobs per second.
"""

import argparse
import os
from typing import Any

import uvloop

from benchmarks import report
from benchmarks.cluster import Cluster, cluster
from benchmarks.lifecycle import one_run
from benchmarks.procstat import cpu_s

SDK = {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


async def one_round(made: Cluster, jobs: int) -> dict[str, float]:
    await one_run(made, jobs // 10)  # warm
    pids = {name: process.pid for name, process in made.processes.items()}
    before = cpu_s(pids)
    _, per_s = await one_run(made, jobs)
    after = cpu_s(pids)
    us = {f"{name}_us": 1e6 * (after[name] - before[name]) / jobs for name in pids}
    return {"jobs_per_s": per_s, **us}


def measured(jobs: int, *, metered: bool) -> tuple[dict[str, float], dict[str, Any]]:
    for name in SDK:
        os.environ.pop(name, None)
    os.environ.update(SDK if metered else {})
    with cluster() as made:
        return uvloop.run(one_round(made, jobs)), uvloop.run(report.stamp(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    runs: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    stamp: dict[str, Any] = {}
    for _ in range(options.rounds):
        for name, found in runs.items():
            result, stamp = measured(options.jobs, metered=name == "on")
            found.append(result)
    keys = list(runs["on"][0])
    medians = {name: {key: report.median([run[key] for run in found]) for key in keys} for name, found in runs.items()}
    added = {key: round(medians["on"][key] - medians["off"][key], 2) for key in keys if key.endswith("_us")}
    result = {
        "value": round(sum(added.values()), 2),
        "unit": "µs of CPU a job, coordinator and worker together",
        "yardstick": None,
        "ratio": None,
        "added": added,
        "medians": {name: {key: round(n, 1) for key, n in values.items()} for name, values in medians.items()},
        "all": {name: [{key: round(n, 1) for key, n in run.items()} for run in found] for name, found in runs.items()},
        "jobs": options.jobs,
        "rounds": options.rounds,
        **stamp,
    }
    report.show("metering", result, options, at_most={"value": 5.0})


if __name__ == "__main__":
    main()
