"""The jobs of the test, and the thread that submits them while things are killed."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from deploy.smoke.shell import SmokeError, say

if TYPE_CHECKING:
    from deploy.smoke.cluster import Cluster

CHUNK_JOBS = 50
# A NATS node that dies costs an election, Postgres' restart nothing; what takes longer than this is a finding.
CHUNK_PATIENCE_S = 120.0
RETRY_S = 0.5
SLOW_S = (2.0, 8.0)
LATER_S = (5.0, 45.0)


def make_jobs(count: int, seed: int) -> list[dict[str, Any]]:
    """Of ten: one slow, one due later, one that fails first, one that greets; the others short. All must succeed."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    return [_job(number, chance) for number in range(count)]


def _job(number: int, chance: random.Random) -> dict[str, Any]:
    job: dict[str, Any] = {"id": str(uuid.uuid4()), "handler": "work", "args": {"seconds": chance.uniform(0, 0.2)}}
    match number % 10:
        case 0:
            return job | {"args": {"seconds": chance.uniform(*SLOW_S)}}
        case 1:
            return job | {"delay_s": chance.uniform(*LATER_S)}
        case 2:
            return job | {"handler": "flaky", "args": {}}
        case 3:
            return job | {"handler": "greet", "args": {"name": f"number {number}"}}
        case _:
            return job


class Submitter:
    """Submits in chunks, each until `jm submit` says that it is queued: the ids make a repetition harmless."""

    def __init__(self, cluster: Cluster, jobs: list[dict[str, Any]]) -> None:
        self.accepted: list[str] = []  # ids for which there is a receipt
        self.repeated = 0
        self._cluster = cluster
        self._jobs = jobs
        self._failure: SmokeError | None = None
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    @property
    def share(self) -> float:
        """How much is submitted, 0 to 1."""
        return len(self.accepted) / len(self._jobs)

    def start(self) -> None:
        self._cluster.jm("--version")  # the helper is there before the load
        self._thread.start()

    def wait_for(self, share: float) -> None:
        """Raises:
        SmokeError: the submitter has given up.
        """
        while self._thread.is_alive() and self.share < share:
            time.sleep(0.1)
        if self._failure:
            raise self._failure

    def join(self) -> None:
        self.wait_for(1.0)
        self._thread.join()
        self.wait_for(1.0)

    def _run(self) -> None:
        try:
            for start in range(0, len(self._jobs), CHUNK_JOBS):
                self._submit(self._jobs[start : start + CHUNK_JOBS])
        except SmokeError as failure:
            self._failure = failure

    def _submit(self, jobs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(job) + "\n" for job in jobs)
        deadline = time.monotonic() + CHUNK_PATIENCE_S
        while True:
            try:
                self._cluster.jm("submit", "--file", "-", given=lines)
            except SmokeError as error:
                if time.monotonic() > deadline:
                    raise SmokeError(f"nothing is accepted for {CHUNK_PATIENCE_S:g} s: {error}") from None
                self.repeated += 1
                say(f"submitted again: {str(error).splitlines()[-1].strip()}")
                time.sleep(RETRY_S)
            else:
                self.accepted += [job["id"] for job in jobs]
                return
