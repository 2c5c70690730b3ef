"""One batch of accepted jobs into Postgres and on into the buckets, whatever is wrong with some of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from jm_core.intake import NewJob, Rejection
from jm_core.save_plan import Part, group_jobs
from jm_core.unique import has_keys, waves
from jm_master.clashes import Clashes
from jm_master.pg_errors import RowRefusedError
from jm_master.runs import RunMessage, encode_runs
from jm_master.save_store import SaveBatch, Saved, TermLost, outgoing_of
from jm_master.submissions import Fates, Submitted, refusal_of
from jm_master.terms import LostTermError
from jm_nats.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.ids import Term
    from jm_master.ahead import Ahead
    from jm_master.cancel import Canceller
    from jm_master.database import Database
    from jm_master.outbox import Outbox
    from jm_master.placer import Placer
    from jm_master.runs import RunSender
    from jm_master.save_store import Outgoing, Refusal, SaveStore
    from jm_master.wake import Wake

Jobs = list[list[NewJob]]  # by message of the batch


class Work(Struct):
    """A batch under way, and what is left to do after its commit."""

    batch: list[Submitted] = field(default_factory=list)
    queued_at: list[float] = field(default_factory=list)
    fates: Fates = field(default_factory=Fates)
    outgoing: list[RunMessage] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)  # outbox ids whose commit was answered at a second try only
    left_on_master: bool = False


class Saver:
    """Saves; repeats what an outage interrupted; bisects what Postgres refuses; finds out why rows were there."""

    def __init__(
        self,
        database: Database,
        store: SaveStore,
        placer: Placer,
        sender: RunSender,
        outbox: Outbox,
        *,
        canceller: Canceller,
        assign: Wake,
        term: Term,
        threshold_s: float,
        ahead: Ahead | None = None,
    ) -> None:
        self.sent: list[str] = []  # outbox ids that NATS has; their rows go with the next statement
        self._database = database
        self._store = store
        self._placer = placer
        self._sender = sender
        self._outbox = outbox
        self._assign = assign
        self._term = term
        self._threshold_s = threshold_s
        self._canceller = canceller
        self._clashes = Clashes(database, store, canceller, term=term)
        self._keyed = anyio.Lock()
        self._ahead = ahead

    async def save(self, work: Work, jobs: Jobs, refusals: list[Refusal]) -> None:
        """Commit ``jobs`` and ``refusals``; what follows from it is noted in ``work``.

        Raises:
            LostTermError: nothing was written.
        """
        if not has_keys(jobs):
            await self._save(work, jobs, refusals)
            return
        # One batch with keys at a time: between making way for a job and inserting it nobody else shall come, and two
        # batches that hold each other's keys would wait for Postgres to find that out.
        async with self._keyed:
            for wave in waves(jobs):
                await self._save(work, wave, refusals)
                refusals = []

    async def _save(self, work: Work, jobs: Jobs, refusals: list[Refusal]) -> None:
        if self._ahead is not None and self._ahead.ids:
            jobs, early = self._ahead.split(jobs)
            if any(early):  # cancelled before they came: into no bucket
                groups = group_jobs(early, now_s=time.time(), threshold_s=self._threshold_s)
                parts = [Part(replace(group, second=None), 0, len(group.jobs)) for group in groups]
                await self._save_parts(work, parts, [])
        groups = group_jobs(jobs, now_s=time.time(), threshold_s=self._threshold_s)
        while True:
            parts, groups = await self._placer.place(groups)
            await self._save_parts(work, parts, refusals)
            if not groups:
                return
            # The rest waits for credit, and only what is in the buckets can free any.
            await self.send(work)
            refusals = []

    async def send(self, work: Work) -> None:
        """What is committed goes into its buckets; what NATS does not take waits in the outbox."""
        outgoing, work.outgoing = work.outgoing, []
        uncertain, work.uncertain = work.uncertain, []
        sent = await self._sender.send_all(outgoing, now_s=time.time())
        # Not `+= await`: that reads the list first, and another batch may take it meanwhile.
        self.sent += sent
        if uncertain:
            await self._outbox.resend(uncertain)
        if work.left_on_master:
            self._assign.set()

    async def _save_parts(self, work: Work, parts: list[Part], refusals: list[Refusal]) -> None:
        sent, self.sent = self.sent, []
        batch = SaveBatch(parts, work.queued_at, outgoing_of(parts), refusals, sent)
        reach("writer.before_commit")
        try:
            answer, tries = await self._commit(batch)
        except RowRefusedError as error:
            self.sent += sent
            self._placer.release(parts)
            await self._bisect(work, jobs_of(parts, len(work.batch)), refusals, error)
            return
        if isinstance(answer, TermLost):
            raise LostTermError(self._term)
        if self._ahead is not None and self._ahead.ids:
            # Where an answer was lost, it does not say whom it cancelled: who waits is told to look.
            self._canceller.ended(answer.cancelled if tries == 1 else self._ahead.among(parts))
            self._ahead.over(answer.cancelled)
        work.left_on_master |= any(part.bucket is None and part.group.second is not None for part in parts)
        if answer.inserted is None:
            work.outgoing += [_message(out, out.part, work.queued_at) for out in batch.outgoing]
        else:
            await self._after_clash(work, batch, answer.inserted, again=tries > 1)

    async def _commit(self, batch: SaveBatch) -> tuple[Saved | TermLost, int]:
        """The answer, and at which try it came."""
        tries = 0

        async def one_try() -> Saved | TermLost:
            nonlocal tries
            tries += 1
            return await self._store.save(batch)

        return await self._database.ride_out(one_try), tries

    async def _bisect(self, work: Work, jobs: Jobs, refusals: list[Refusal], error: RowRefusedError) -> None:
        """Find the row that Postgres refuses: it alone is rejected, the rest is saved."""
        count = sum(map(len, jobs))
        if count == 0:
            raise error  # our own words about a refusal were refused: a bug
        if count == 1:
            place, job = next((place, job) for place, of_message in enumerate(jobs) for job in of_message)
            work.fates.refused[job.id] = error.problem
            await self._save(work, [], [*refusals, _refusal(work.batch[place], job, error.problem)])
            return
        await self._save(work, _slice(jobs, 0, count // 2), refusals)
        await self._save(work, _slice(jobs, count // 2, count), [])

    async def _after_clash(self, work: Work, batch: SaveBatch, inserted: frozenset[str], *, again: bool) -> None:
        """Some rows were there already: a message delivered twice, a job sent twice, or a unique key that is taken."""
        empty = [out.outbox_id for out in batch.outgoing if not self._keep_inserted(work, out, inserted)]
        if again:
            # The answer to an earlier COMMIT may have been lost. The outbox rows tell what it wrote.
            work.uncertain += [out.outbox_id for out in batch.outgoing]
        else:
            self.sent += empty  # nobody waits for these messages: their rows go too
        jobs = jobs_of(batch.parts, len(work.batch))
        missing = [[job for job in of_message if job.id not in inserted] for of_message in jobs]
        once_more = await self._clashes.settle(work, missing)
        if any(once_more):
            await self._save(work, once_more, [])

    def _keep_inserted(self, work: Work, out: Outgoing, inserted: frozenset[str]) -> bool:
        """Send a message with those of its jobs that are new; False when none is."""
        part, group = out.part, out.part.group
        places = [place for place in range(part.lo, part.hi) if group.jobs[place].id in inserted]
        self._placer.release_some(part, part.hi - part.lo - len(places))
        if not places:
            return False
        jobs, messages = [group.jobs[place] for place in places], [group.messages[place] for place in places]
        kept = Part(replace(group, jobs=jobs, messages=messages), 0, len(jobs), part.bucket)
        work.outgoing.append(_message(out, kept, work.queued_at))
        return True


def _message(out: Outgoing, part: Part, queued_at: list[float]) -> RunMessage:
    assert part.bucket is not None
    body = encode_runs(part, queued_at)
    return RunMessage(out.outbox_id, part.bucket, out.deliver_at, body, part.hi - part.lo)


def _refusal(submitted: Submitted, job: NewJob, problem: str) -> Refusal:
    place = next(place for place, parsed in enumerate(submitted.parsed) if parsed is job)
    return refusal_of(submitted, place, Rejection(submitted.raw_of(place), problem, job.id, job.handler))


def jobs_of(parts: Sequence[Part], messages: int) -> Jobs:
    """The jobs of parts, back in the messages they came in."""
    jobs: Jobs = [[] for _ in range(messages)]
    for part in parts:
        for place in range(part.lo, part.hi):
            jobs[part.group.messages[place] - 1].append(part.group.jobs[place])
    return jobs


def _slice(jobs: Jobs, lo: int, hi: int) -> Jobs:
    """Jobs number ``lo`` to ``hi`` (excluded), still by message."""
    sliced, before = [], 0
    for of_message in jobs:
        sliced.append(of_message[max(0, lo - before) : max(0, hi - before)])
        before += len(of_message)
    return sliced
