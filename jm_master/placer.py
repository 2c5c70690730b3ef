"""Where a batch of new jobs goes: carries out ``jm_core.placement`` against the ledger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jm_core.placement import credit_wait_s
from jm_core.save_plan import SECOND_NOW, Group, Part, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.placement import Share
    from jm_master.ledger import Ledger


class Placer:
    """Reserves credit; what is not sent after all has to be released."""

    def __init__(self, ledger: Ledger, *, wait_s: float) -> None:
        self._ledger = ledger
        self._wait_s = wait_s

    async def place(self, groups: Sequence[Group]) -> tuple[list[Part], list[Group]]:
        """What to write now, and what to come back with.

        What has no bucket, no credit or much time stays on the master. Only when the credit is short and nothing
        moves yet (a flood begins) the rest is given back: once the first jobs have shown how long they take, there
        may be credit for all of them.
        """
        self._ledger.mature(wall_s=time.time())
        begins = self._ledger.progress_age_s(now_s=time.monotonic()) > self._wait_s
        if not begins:
            await self._wait_for_credit(groups)
        parts: list[Part] = []
        rest: list[Group] = []
        for group in groups:
            shares = self._share(group)
            given, count = sum(share.count for share in shares), len(group.jobs)
            if begins and 0 < given < count and group.second == SECOND_NOW:
                rest.append(replace(group, jobs=group.jobs[given:], messages=group.messages[given:]))
                count = given
            parts += parts_of(group, shares, count)
        return parts, rest

    def release(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.release_some(part, part.hi - part.lo)

    def release_some(self, part: Part, count: int) -> None:
        if part.bucket and count:
            self._ledger.take_back(part.bucket, count, second=part.group.second or 0)

    def _share(self, group: Group) -> list[Share]:
        """Reserve what there is."""
        if group.second is None:
            return []
        now_s = time.monotonic()
        shares = self._offer(group, now_s)
        for share in shares:
            self._ledger.give(share.bucket, share.count, second=group.second, now_s=now_s)
        return shares

    async def _wait_for_credit(self, groups: Sequence[Group]) -> None:
        """Jobs that take microseconds free their credit in milliseconds: cheaper than a way round by the master."""
        until_s = time.monotonic() + self._wait_s
        while (now_s := time.monotonic()) < until_s and self._is_worth_waiting(groups, now_s):
            await self._ledger.freed.wait(until_s - now_s)

    def _is_worth_waiting(self, groups: Sequence[Group], now_s: float) -> bool:
        ledger, age_s = self._ledger, self._ledger.progress_age_s(now_s=now_s)
        for group in groups:
            short_of = self._short_of(group, now_s)
            if short_of > 0:
                rate_per_s = ledger.capacity_per_s(group.lane, group.priority, group.handler)
                if credit_wait_s(short_of=short_of, progress_age_s=age_s, rate_per_s=rate_per_s):
                    return True
        return False

    def _short_of(self, group: Group, now_s: float) -> int:
        if group.second != SECOND_NOW or not self._ledger.has_bucket(group.lane, group.priority):
            return 0
        return len(group.jobs) - sum(share.count for share in self._offer(group, now_s))

    def _offer(self, group: Group, now_s: float) -> list[Share]:
        later = group.second != SECOND_NOW
        return self._ledger.offer(
            group.lane, group.priority, group.handler, len(group.jobs), later=later, now_s=now_s, newcomers=True
        )
