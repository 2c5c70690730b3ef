"""A cluster under load to which something is about to happen, and what must be true when it is over."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jm_nats.provision import BUCKET_ACK_WAIT_S, MASTER_ACK_WAIT_S
from tests.support import oracles
from tests.support.app import effect
from tests.support.effects import EFFECTS_VARIABLE, Effects, unfounded
from tests.support.load import Load, load
from tests.support.processes import COORDINATOR_READY, Cluster, JmProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jm_core.wire import Submission
    from jm_nats import JobClient

SETTLE_S: Final = 60.0
# An ack that was on its way when the connection broke is lost, and its message comes once more after the ack wait
# (jm_nats.provision), to be recognised and acknowledged again.
REST_S: Final = max(MASTER_ACK_WAIT_S, BUCKET_ACK_WAIT_S) + 15
LOST: Final = "lost"


@dataclass(frozen=True)
class Timing:
    lease_s: float
    heartbeat_s: float

    def env(self) -> dict[str, str]:
        return {"JM_LEASE_S": f"{self.lease_s:g}", "JM_HEARTBEAT_S": f"{self.heartbeat_s:g}"}


SHORT: Final = Timing(2.0, 0.4)
SHIPPED: Final = Timing(10.0, 2.0)


class Scene(Cluster):
    """A cluster whose handlers tell what they do (``effects``), and the ids of all jobs that were accepted."""

    def __init__(
        self, nats_url: str, dsn: str, name: str, folder: Path, timing: Timing = SHORT, **settings: str
    ) -> None:
        self.effects_path = folder / f"{name}.effects"
        super().__init__(nats_url, dsn, name, **{EFFECTS_VARIABLE: str(self.effects_path), **timing.env(), **settings})
        self.timing = timing
        self.accepted: list[str] = []

    def effects(self) -> Effects:
        return Effects(self.effects_path)

    @asynccontextmanager
    async def under_load(self, client: JobClient, each: int = 5, **args: Any) -> AsyncIterator[Load]:
        """Short jobs come all the while."""

        def make() -> list[Submission]:
            return [effect.job({"secret": oracles.PLANTED, **args}) for _ in range(each)]

        async with load(client, self.accepted, make) as submitting:
            yield submitting

    async def start_long(self, client: JobClient, jobs: int, seconds: float) -> list[str]:
        """Jobs that run for ``seconds``, once all of them do run."""
        made = [effect.job({"seconds": seconds}) for _ in range(jobs)]
        ids = [receipt.job_id for receipt in await client.submit_many(made)]
        self.accepted += ids
        await self.wait_running(ids)
        return ids

    async def wait_running(self, ids: list[str], timeout_s: float = 30) -> None:
        def running() -> bool:
            return set(ids) <= {run.job_id for run in self.effects().running()}

        await wait_until(running, timeout_s, what=f"{len(ids)} jobs run")

        async def recorded() -> bool:
            query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status >= 3"
            return bool(await self.sql.value(query, ids) == len(set(ids)))

        # What is killed before its start is recorded was never seen to start.
        await wait_until(recorded, timeout_s, what=f"{len(ids)} starts are recorded")

    async def wait_rerun(self, timeout_s: float = 30) -> None:
        """Return when every job that was accepted has either ended or been started by another process."""

        def rerun() -> bool:
            effects = self.effects()
            pids: dict[str, set[int]] = {}
            for run in effects.runs:
                pids.setdefault(run.job_id, set()).add(run.pid)
            ended = {run.job_id for run in effects.runs if run.end_s is not None}
            return all(job_id in ended or len(pids.get(job_id, ())) > 1 for job_id in self.accepted)

        await wait_until(rerun, timeout_s, what="another worker has taken the jobs over")

    async def stays_useful(self, client: JobClient, worker: JmProcess, timeout_s: float = 30) -> None:
        """Return when ``worker`` has run a new job."""

        def by_it() -> bool:
            return any(run.pid == worker.pid and run.job_id in new for run in self.effects().runs)

        new: set[str] = set()
        deadline = time.monotonic() + timeout_s
        while not by_it():
            assert time.monotonic() < deadline, f"{worker} runs nothing any more\n{worker.log_tail()}"
            receipts = await client.submit_many(effect.job({"seconds": 0.1}) for _ in range(10))
            new |= {receipt.job_id for receipt in receipts}
            self.accepted += [receipt.job_id for receipt in receipts]
            await self.ended(self.accepted)

    async def time_to_run(self, client: JobClient, timeout_s: float = 30) -> float:
        """From now until a new job has run: how soon all is well again."""
        began = time.monotonic()
        (receipt,) = await client.submit_many([effect.job({})])
        self.accepted.append(receipt.job_id)
        await wait_until(lambda: self.effects().executions()[receipt.job_id], timeout_s, what="a new job runs")
        return time.monotonic() - began

    async def settled(self, *, repeats: bool = False, lost: bool = False, timeout_s: float = SETTLE_S) -> Effects:
        """Everything accepted has succeeded and all oracles hold.

        Args:
            repeats: a job may have run again, because a worker was killed, frozen or cut off.
            lost: buckets may have been declared lost.
        """
        assert await self.ended(self.accepted, timeout_s=timeout_s) == {"succeeded": len(set(self.accepted))}
        effects = self.effects()
        print(f"{len(self.accepted)} jobs, the longest delay {max(effects.delays_s(), default=0):.2f} s")  # noqa: T201
        await self.assert_oracles(self.accepted, timeout_s=REST_S)
        assert await unfounded(self.sql, effects, self.accepted) == [], "O5: successes that no run explains"
        if not repeats:
            assert effects.repeated() == {}, "O5: jobs ran again although nobody had died"
        if not lost:
            assert await self.tombstones(LOST) == [], "somebody was declared lost who was not"
        return effects

    def assert_running(self, *processes: JmProcess) -> None:
        """Nobody ended, which a supervisor would have to make good."""
        ended = [process for process in processes or self.processes.all if not process.running]
        assert not ended, "\n".join(process.log_tail() for process in ended)


async def becomes_leader(process: JmProcess, timeout_s: float) -> float:
    """Seconds until it leads."""
    began = time.monotonic()
    await process.wait_for_log(COORDINATOR_READY, timeout_s)
    return time.monotonic() - began
