"""The saver without servers: in which order a batch is committed and sent."""

from __future__ import annotations

import time

from jm_core.intake import NewJob
from jm_core.model import Priority
from jm_core.wire import BucketRecord, WorkerRecord, encode
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.ledger import Ledger
from jm_master.placer import Placer
from jm_master.registry_view import RegistryView
from jm_master.save_store import Saved
from jm_master.saver import Saver, Work
from jm_master.wake import Wake

WAIT_S = 5.0


class Journal:
    """Store and sender in one; what is sent is done at once."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.entries = []

    async def save(self, batch):
        self.entries.append(("saved", sum(part.hi - part.lo for part in batch.parts if part.bucket)))
        return Saved(None)

    async def send_all(self, messages, *, now_s):
        assert now_s
        for message in messages:
            self.entries.append(("sent", message.jobs))
            self.ledger.settle(message.bucket, "w", message.jobs, run_s=1e-6, now_s=time.monotonic())
        return [message.outbox_id for message in messages]


async def test_the_beginning_of_a_flood_runs_before_the_rest_waits_for_credit():
    view = RegistryView()
    view.set_worker("w", encode(WorkerRecord("w", "w", "host", 1, 0.0, 1, ["default"], ["h"])))
    bucket = BucketRecord("b", "w", "w", "default", int(Priority.MEDIUM), 1, "active")
    view.set_bucket("b", encode(bucket), 1)
    ledger = Ledger(view)
    journal = Journal(ledger)
    saver = Saver(
        Database(PostgresConfig(dsn="postgresql://u@localhost/x")),
        journal,
        Placer(ledger, wait_s=WAIT_S),
        journal,
        None,
        canceller=None,
        assign=Wake(),
        term=1,
        threshold_s=600.0,
    )
    jobs = [NewJob(f"job-{n}", "h", b"{}", None, "default", Priority.MEDIUM, 4, 300.0) for n in range(1_500)]
    work = Work([None], [time.time()])
    began_s = time.monotonic()
    await saver.save(work, [jobs], [])
    await saver.send(work)
    assert time.monotonic() - began_s < WAIT_S / 2
    kinds = [kind for kind, _ in journal.entries]
    assert kinds.index("sent") < len(kinds) - 1 - kinds[::-1].index("saved")
    assert sum(count for kind, count in journal.entries if kind == "sent") == len(jobs)
