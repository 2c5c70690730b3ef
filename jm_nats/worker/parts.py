"""What a running worker is made of, and how it is put together."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from nats import errors

from jm_core import wire
from jm_nats.clock import Clock
from jm_nats.connection import NatsLink
from jm_nats.handlers import Handler
from jm_nats.kv import CasKv
from jm_nats.publisher import JetPublisher
from jm_nats.subjects import Names
from jm_nats.worker.adoption import Adopter
from jm_nats.worker.buckets import Buckets
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Executors
from jm_nats.worker.guard import Guard
from jm_nats.worker.heartbeat import Heartbeat
from jm_nats.worker.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Parts:
    link: NatsLink
    heartbeat: Heartbeat
    engine: Engine
    buckets: Buckets
    guard: Guard
    adopter: Adopter
    kv: CasKv
    tasks: Tasks


def put_together(  # noqa: PLR0917 - that is what it is for
    link: NatsLink,
    names: Names,
    kv: CasKv,
    heartbeat: Heartbeat,
    publisher: JetPublisher,
    tasks: Tasks,
    *,
    config: WorkerConfig,
    incarnation: str,
    handlers: dict[str, Handler],
    executors: Executors,
    clock: Clock,
    may_adopt: Callable[[], bool],
) -> Parts:
    """Args: may_adopt: beside the lease, which must hold: who is about to go leaves it to those who stay."""
    engine = Engine(
        handlers,
        slots=config.slots,
        executors=executors,
        clock=clock,
        cancel_grace_s=config.cancel_grace_s,
        on_room=lambda: buckets.room.update(engine),
    )
    buckets = Buckets(
        link,
        names,
        kv,
        engine,
        publisher,
        tasks,
        worker=config.worker_id,
        incarnation=incarnation,
        replicas=config.replicas,
        reconcile=_hint(link, names),
    )

    def on_trust() -> None:
        engine.pump()
        tasks.start(buckets.replace_lost(), "replaces lost buckets", ends=True)

    guard = Guard(heartbeat, lease_s=config.lease_s, verify=buckets.check.verify, on_trust=on_trust)
    buckets.check.lease = guard
    engine.may_start = guard.holds
    adopter = Adopter(
        link,
        names,
        kv,
        publisher,
        tasks,
        worker=config.worker_id,
        incarnation=incarnation,
        may=lambda: guard.holds() and may_adopt(),
    )
    return Parts(link, heartbeat, engine, buckets, guard, adopter, kv, tasks)


def _hint(link: NatsLink, names: Names) -> Callable[[str], Awaitable[None]]:
    async def reconcile(bucket: str) -> None:
        """Only a hint: the reconciler comes by itself, later."""
        with suppress(errors.Error, OSError):
            await link.nc.publish(names.wake, wire.encode({"reconcile": bucket}))

    return reconcile
