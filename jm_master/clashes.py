"""Jobs whose row was not inserted: finds out why, makes way where the rules say so, notes who is a duplicate."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from jm_core.unique import Verdict, judge
from jm_master.save_store import TermLost
from jm_master.terms import LostTermError
from jm_nats.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jm_core.ids import Term
    from jm_core.intake import NewJob
    from jm_core.unique import Clash
    from jm_master.database import Database
    from jm_master.save_store import SaveStore
    from jm_master.saver import Jobs, Work


class Clashes:
    """What to do about them is ``jm_core.unique.judge``'s; this carries it out.

    Args:
        ended: told the ids of jobs that were cancelled because another one took their place.
    """

    def __init__(
        self, database: Database, store: SaveStore, *, term: Term, ended: Callable[[Iterable[str]], None]
    ) -> None:
        self._database = database
        self._store = store
        self._term = term
        self._ended = ended

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
        if replaced:
            await self._replace(replaced)
        return once_more

    async def _release(self, over: list[tuple[Clash, float]]) -> None:
        ids, moments = [clash.existing_id or "" for clash, _ in over], [queued_at for _, queued_at in over]
        if isinstance(await self._database.ride_out(lambda: self._store.release_keys(ids, moments)), TermLost):
            raise LostTermError(self._term)

    async def _replace(self, replaced: list[tuple[Clash, NewJob]]) -> None:
        """Not in the transaction that inserts the new one. Should we die in between, its message comes again, and the
        key is free.
        """
        ids, new_ids = [clash.existing_id or "" for clash, _ in replaced], [job.id for _, job in replaced]
        gone = await self._database.ride_out(lambda: self._store.replace_waiting(ids, new_ids))
        if isinstance(gone, TermLost):
            raise LostTermError(self._term)
        reach("writer.after_replace")
        # All of them, not only those that this answer names: an answer before it may have been lost, and whoever waits
        # looks for himself.
        self._ended(ids)
