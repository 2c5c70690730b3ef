"""A disk that is really full, below NATS and below Postgres: what was acknowledged is kept, and runs with room again.

The disk is a small file system in memory, which takes root to mount. What docs/operations.md says of it is from here.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from jm_nats.embedded import NatsServer
from tests.support.app import echo
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jm_nats import JobClient

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

NATS_DISK: Final = "48m"
POSTGRES_DISK: Final = "192m"
SMALL_LOG: Final = {"max_wal_size": "64MB", "min_wal_size": "32MB", "fsync": "off"}
ANSWER_S: Final = 3.0
TRIES: Final = 200


class Disk:
    """A folder with a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        with self._ballast.open("wb", buffering=0) as file:
            for step in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(step))
                except OSError:
                    continue
        assert os.statvfs(self.folder).f_bavail == 0

    def make_room(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(size: str) -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="jm-test-disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", folder]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no small disk can be mounted here, which takes root: {error}")
        try:
            yield Disk(Path(folder))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


async def accepted_until_it_stops(client: JobClient, tries: int = TRIES) -> list[str]:
    """Ids of jobs that NATS has acknowledged, up to the first that it does not answer for."""
    accepted = []
    for number in range(tries):
        try:
            async with asyncio.timeout(ANSWER_S):
                accepted.append((await client.submit(echo.job({"value": number}))).job_id)
        except Exception as error:  # noqa: BLE001 - how it fails is not the point: there is no receipt
            print(f"no receipt after {len(accepted)}: {type(error).__name__}: {error}")  # noqa: T201
            break
    return accepted


async def test_what_a_nats_with_a_full_disk_had_acknowledged_runs_once_it_was_restarted_with_room(
    database: str, cluster_name: str
) -> None:
    with small_disk(NATS_DISK) as disk, NatsServer(disk.folder / "nats") as nats:
        async with Cluster(nats.url, database, cluster_name) as cluster:
            await cluster.start()
            async with cluster.client() as client:
                before = await accepted_until_it_stops(client, tries=5)
                await cluster.ended(before)
                await asyncio.to_thread(disk.fill)
                while_full = await accepted_until_it_stops(client)
                assert len(while_full) < TRIES, "without room it acknowledges nothing more"
                disk.make_room()
                await asyncio.to_thread(nats.stop)
                await asyncio.to_thread(nats.start)

                async def takes_jobs() -> list[str]:
                    return await accepted_until_it_stops(client, tries=1)

                after = await wait_until(takes_jobs, 40, what="a receipt")
            accepted = [*before, *while_full, *after]
            # Not the oracle of empty streams: NATS may bring back a message whose removal it could not write. Its
            # consumer is past it, so nobody gets it again; a drain would, and the fence refuses what it says.
            assert await cluster.ended(accepted, timeout_s=40) == {"succeeded": len(accepted)}


async def test_a_postgres_with_a_full_disk_is_an_outage_and_goes_on_with_room(nats_server, cluster_name: str) -> None:
    with small_disk(POSTGRES_DISK) as disk, PostgresServer(disk.folder / "pg", settings=SMALL_LOG) as postgres:
        dsn = await asyncio.to_thread(postgres.create_database, "jobs")
        await migrate(dsn)
        async with Cluster(nats_server.url, dsn, cluster_name) as cluster:
            coordinator, worker = cluster.start_coordinator(), cluster.start_worker()
            await coordinator.wait_ready()
            await worker.wait_ready()
            async with cluster.client() as client:
                await asyncio.to_thread(disk.fill)
                accepted = await accepted_until_it_stops(client)
                assert len(accepted) == TRIES, "submissions wait in NATS"
                await coordinator.wait_for_log("No space left on device", timeout_s=40)
                disk.make_room()
            assert await cluster.ended(accepted, timeout_s=60) == {"succeeded": TRIES}
            assert coordinator.running
            assert worker.running
