"""The worker's side of jm_core/rpc.py: hears questions and orders, and answers each of them, also the bad ones.

Nothing here is needed for correctness. A request or an answer that is lost is asked again by whoever wanted it, so
every order can be given twice; and a request that makes no sense costs its asker an error text, never the worker its
life.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, Self, assert_never

import msgspec
from nats import errors

from jm_core import rpc, wire
from jm_core.errors import JmError
from jm_core.ids import parse_name
from jm_core.model import Priority
from jm_nats.errors import AgentUnavailableError
from jm_nats.subjects import INBOX_RULE, is_inbox
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from jm_core.api_schedules import ScheduleSpec
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

__all__ = ["Orders", "RefusedOrderError", "WorkerRpc"]

log = logging.getLogger("jobmaster.worker")

OPEN_MAX: Final = 200  # requests that are being answered at once; the next ones are told so
REASON_CHARS_MAX: Final = 500
ANSWER_WITHIN_S: Final = 30.0  # longer than any asker waits


class RefusedOrderError(JmError):
    """What an order raises that does not fit this worker, a bucket that is not its own for one; the asker reads it."""


class Orders(Protocol):
    """What can be asked of a worker, and ordered. Done already is done: each may come twice."""

    async def holds(self, bucket: str, jobs: list[tuple[str, int]]) -> list[str]:
        """The ids of those (id, dispatch) that it holds, runs, or has still to report.

        Raises:
            RefusedOrderError: the bucket is not its own.
        """

    def recall(self, bucket: str, jobs: list[tuple[str, int]]) -> list[str]:
        """The ids of those (id, dispatch) that it has not started, and will not start.

        Raises:
            RefusedOrderError: the bucket is not its own.
        """

    async def open_fallback(self, lane: str, serves: int, reason: str) -> str:
        """The fallback bucket for jobs of ``lane`` and priority ``serves``, opened unless it is there."""

    async def retire(self, bucket: str, reason: str) -> None:
        """Close the bucket.

        Raises:
            RefusedOrderError: it is not its own.
        """

    def drain(self, undo: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Drain
        """Take no more, and exit once nothing runs; or take that back.

        Raises:
            RefusedOrderError: it is stopping already.
        """

    def stop(self, hurry: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Stop
        """As SIGTERM, or as a second one."""

    def status(self) -> rpc.WorkerStatus:
        """What it does at this moment."""

    def declared(self, start: int) -> tuple[list[ScheduleSpec], bool]:
        """Schedules of its code, from the ``start``-th on, and whether there are others behind them."""


class WorkerRpc:
    """Answers from entering the context to leaving it.

    Args:
        orders: who carries them out.
    """

    def __init__(self, link: NatsLink, names: Names, worker_id: str, orders: Orders) -> None:
        self._link = link
        self._subject = names.worker_rpc(worker_id)
        self._orders = orders
        self._answering: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._subscription = await self._link.nc.subscribe(self._subject, cb=self._on_request)
        try:
            await self._link.round_trip()
        except AgentUnavailableError as error:  # nats.py subscribes again with the next connection
            log.debug("nobody can ask us for now", extra={"error": str(error)})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.retire(self._subscription)
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _on_request(self, message: Msg) -> None:
        """Each in a task of its own: opening a bucket takes a while, and a question must not wait for it.

        Whoever asks names the subject of the answer, and we publish with rights that they may not have.
        """
        if message.reply and not is_inbox(message.reply):
            trouble(log, "reply not sent", {"subject": message.reply[:100], "rule": INBOX_RULE})
            return
        if len(self._answering) >= OPEN_MAX:
            await self._send(message.reply, rpc.Answer(error=f"{OPEN_MAX} requests are open already; ask again later"))
            return
        task = asyncio.create_task(self._reply(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _reply(self, message: Msg) -> None:
        await self._send(message.reply, await self._answer(message.data))

    async def _answer(self, data: bytes) -> rpc.Answer:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await self._carry_out(rpc.decode_request(data))
        except msgspec.MsgspecError as error:
            return rpc.Answer(error=f"the request cannot be read: {error}; see jm_core/rpc.py of this version")
        except JmError as error:  # RefusedOrderError, a bad name, NATS is away
            return rpc.Answer(error=str(error))
        except TimeoutError:
            return rpc.Answer(error=f"not done in {ANSWER_WITHIN_S:g} s; ask again")
        except Exception as error:  # the edge: a bug in an order must not end the worker
            log.exception("order failed")
            return rpc.Answer(error=f"unexpected {type(error).__name__}: {error}; see the worker's log")

    async def _carry_out(self, request: rpc.Request) -> rpc.Answer:  # noqa: PLR0911 - one line an order
        match request:
            case rpc.Holds():
                parse_name("bucket", request.bucket)
                return rpc.Answer(held=await self._orders.holds(request.bucket, request.jobs))
            case rpc.Recall():
                parse_name("bucket", request.bucket)
                return rpc.Answer(recalled=self._orders.recall(request.bucket, request.jobs))
            case rpc.OpenFallback():
                lane, serves = parse_name("lane", request.lane), _priority(request.serves)
                return rpc.Answer(bucket=await self._orders.open_fallback(lane, serves, _brief(request.reason)))
            case rpc.Retire():
                await self._orders.retire(parse_name("bucket", request.bucket), _brief(request.reason))
                return rpc.Answer()
            case rpc.Drain():
                self._orders.drain(request.undo)
                return rpc.Answer()
            case rpc.Stop():
                self._orders.stop(request.hurry)
                return rpc.Answer()
            case rpc.Status():
                return rpc.Answer(status=self._orders.status())
            case rpc.Declared():
                schedules, more = self._orders.declared(request.start)
                return rpc.Answer(schedules=schedules, more=more)
            case _:
                assert_never(request)

    async def _send(self, subject: str, answer: rpc.Answer) -> None:
        """Without a subject to answer to, an order is carried out all the same."""
        if not subject:
            return
        try:
            await self._link.nc.publish(subject, wire.encode(answer))
        except (errors.Error, OSError) as error:  # costs the asker a wait
            trouble(log, "reply not sent", {"subject": subject, "problem": repr(error)})


def _priority(number: int) -> int:
    if number not in list(Priority):
        raise RefusedOrderError(f"priority {number} is unknown; it must be 1 to {max(Priority)}")
    return number


def _brief(reason: str) -> str:
    """It goes into the bucket's record."""
    return reason[:REASON_CHARS_MAX]
