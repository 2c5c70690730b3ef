"""Jobs whose row was not inserted: finds out why, makes way where the rules say so, notes who is a duplicate."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from jm_core import limits
from jm_core.unique import Verdict, judge
from jm_master.save_store import TermLost
from jm_master.terms import LostTermError
from jm_nats.crashpoints import reach

if TYPE_CHECKING:
    from jm_core.ids import Term
    from jm_core.intake import NewJob
    from jm_core.unique import Clash
    from jm_master.cancel import Canceller
    from jm_master.cancel_store import Found
    from jm_master.database import Database
    from jm_master.save_store import SaveStore
    from jm_master.saver import Jobs, Work

BY: Final = "unique key"  # who cancelled a job that was replaced


class Clashes:
    """What to do about them is ``jm_core.unique.judge``'s; this carries it out."""

    def __init__(self, database: Database, store: SaveStore, canceller: Canceller, *, term: Term) -> None:
        self._database = database
        self._store = store
        self._term = term
        self._canceller = canceller

    async def settle(self, work: Work, missing: Jobs) -> Jobs:
        """Note who is a duplicate; returns those that are to be inserted again: their way is free by now, or they have
        to be judged again because somebody was quicker.

        Raises:
            LostTermError
        """
        flat = list(chain.from_iterable(missing))
        ids, keys = [job.id for job in flat], [job.unique_key for job in flat]
        clashes = await self._database.ride_out(lambda: self._store.find_clashes(ids, keys))
        once_more: Jobs = [[] for _ in missing]
        over: list[tuple[Clash, float]] = []
        replaced: list[tuple[Clash, NewJob]] = []
        for place, of_message in enumerate(missing):
            queued_at = work.queued_at[place]
            for job in of_message:
                clash = clashes[job.id]
                verdict = judge(clash, job.on_conflict, queued_at=queued_at)
                if verdict is Verdict.DUPLICATE:
                    work.fates.duplicates[job.id] = clash.existing_id or job.id
                elif verdict is not Verdict.OURS:
                    once_more[place].append(job)
                if verdict is Verdict.RELEASE:
                    over.append((clash, queued_at))
                elif verdict is Verdict.REPLACE:
                    replaced.append((clash, job))
        if over:
            await self._release(over)
        for clash, job in replaced:
            await self._replace(clash, job)
        return once_more

    async def _release(self, over: list[tuple[Clash, float]]) -> None:
        ids, moments = [clash.existing_id or "" for clash, _ in over], [queued_at for _, queued_at in over]
        if isinstance(await self._database.ride_out(lambda: self._store.release_keys(ids, moments)), TermLost):
            raise LostTermError(self._term)

    async def _replace(self, clash: Clash, job: NewJob) -> None:
        """Not in the transaction that inserts the new one. Should we die in between, its message comes again, and the
        key is free.
        """

        async def one_try() -> list[Found]:
            async with self._database.connection() as connection, connection.transaction():
                if not await self._store.give_way(connection, old_id, margin_s=limits.REPLACE_MARGIN_S):
                    return []  # it has just been started, or has ended: it is judged again
                reason = f"replaced by {job.id}"
                return await self._canceller.store.cancel(connection, [old_id], by=BY, reason=reason, force=False)

        old_id = clash.existing_id or ""
        found = await self._database.ride_out(one_try)
        reach("writer.after_replace")
        self._canceller.committed(found)
        self._canceller.ended([old_id])  # where an answer was lost, `found` does not say so; to look costs nothing
