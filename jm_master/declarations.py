"""Schedules that are declared in code appear, change and go with it. The rules: ``jm_core.static_schedules``.

A heartbeat carries a digest of all that its worker's code declares. One that the leader does not know yet it asks for;
what has been seen, and when, is in Postgres, so that the next leader goes on where this one stopped.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, assert_never

import anyio

from jm_core import limits, rpc
from jm_core.api_schedules import Origin, ScheduleSpec, ScheduleState
from jm_core.errors import InvalidScheduleError
from jm_core.payload import cut_text
from jm_core.schedule_rules import check_declaration, same_recurrence
from jm_core.static_schedules import Change, Create, Idle, Inactivate, Revive, Taken, actions_for, digest_of
from jm_master.pg_errors import RowRefusedError, StoreMisconfiguredError
from jm_master.schedule_rows import shown_spec_of
from jm_master.schedule_store import ScheduleWrite
from jm_master.terms import LostTermError
from jm_nats import telemetry

if TYPE_CHECKING:
    from datetime import datetime

    from jm_core.static_schedules import Action, Patience
    from jm_core.wire import HandlerDefaults
    from jm_master.database import Database
    from jm_master.declaration_store import DeclarationStore, Declared
    from jm_master.registry_view import RegistryView
    from jm_master.schedule_store import ScheduleStore
    from jm_master.watch import Watch
    from jm_master.worker_rpc import WorkerRpc

log = logging.getLogger(__name__)

PASS_MAX_S: Final = 1.0
NOTES_PER_IDLE: Final = 10  # how often, while a schedule would become idle, its sight is written down
FORGET_S: Final = limits.RETENTION_S
PAGES_MAX: Final = 1_000
BY: Final = "code"


class Declarations:
    """One term's.

    Args:
        patience: how long nobody need declare a schedule until it is idle, and inactive.
        zone: of declarations that name none.
    """

    def __init__(
        self,
        database: Database,
        store: DeclarationStore,
        schedules: ScheduleStore,
        view: RegistryView,
        rpc_to: WorkerRpc,
        *,
        watch: Watch,
        patience: Patience,
        zone: str,
    ) -> None:
        self._database = database
        self._store = store
        self._schedules = schedules
        self._view = view
        self._rpc = rpc_to
        self._watch = watch
        self._patience = patience
        self._zone = zone
        self._sets: dict[str, Declared] = {}  # by the digest of the whole
        self._noted: Declared = {}
        self._watched_since_s = time.monotonic()
        self._look_at_s = 0.0

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LostTermError: somebody else leads.
        """
        pass_s = min(PASS_MAX_S, self._patience.idle_s / NOTES_PER_IDLE)
        await self._database.ride_out(lambda: self._store.forget(FORGET_S))
        while True:
            await self.look_once(now_s=time.monotonic())
            telemetry.duty_passed()
            await anyio.sleep(pass_s)

    async def look_once(self, *, now_s: float) -> None:
        """One pass: costs nothing but memory unless something new is declared, or it is time to write down what is."""
        if not self._watch.may_judge(now_s=time.monotonic()) or self._view.elsewhere.away:
            # Who could not look has not seen that nobody declares it; an agent that is away has looked for nobody.
            self._watched_since_s = now_s
        await self._ask_for_unknown()
        declared = self._declared()
        if declared.keys() <= self._noted.keys() and now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self._patience.idle_s / NOTES_PER_IDLE
        await self._note(declared)
        self._noted = declared
        await self._apply_all(declared, now_s - self._watched_since_s)

    def _declared(self) -> Declared:
        live = {worker.schedules for worker in self._view.workers.values()}
        self._sets = {digest: specs for digest, specs in self._sets.items() if digest in live}
        return {key: spec for specs in self._sets.values() for key, spec in specs.items()}

    async def _note(self, declared: Declared) -> None:
        """What Postgres cannot store (a NUL in a text) costs that declaration and no other."""
        if not declared:
            return
        try:
            await self._database.ride_out(lambda: self._store.note(declared))
        except RowRefusedError as refused:
            if len(declared) == 1:
                ((name, _),) = declared
                log.warning("declared schedule cannot be stored: %s", refused, extra={"schedule": ascii(name)})
                return
            for key, spec in declared.items():
                await self._note({key: spec})

    async def _ask_for_unknown(self) -> None:
        """One worker for each set of declarations; who does not answer is asked again in the next pass."""
        unknown = {w.schedules: w.worker for w in self._view.workers.values() if w.schedules not in self._sets}
        unknown.pop("", None)
        for digest, worker in unknown.items():
            specs = await self._ask(worker)
            if specs is not None:
                self._sets[digest] = {(spec.name, digest_of(spec)): spec for spec in specs}

    async def _ask(self, worker: str) -> list[ScheduleSpec] | None:
        specs: list[ScheduleSpec] = []
        for _ in range(PAGES_MAX):
            answer = await self._rpc.ask(worker, rpc.Declared(len(specs)))
            if answer is None or answer.error:
                return None
            specs += answer.schedules
            if not answer.more or not answer.schedules:
                break
        return specs

    async def _apply_all(self, declared: Declared, watched_s: float) -> None:
        picture = await self._database.ride_out(self._store.load)
        if picture.now is None:
            return
        for name, versions in picture.versions.items():
            actions = actions_for(
                versions, picture.known.get(name), now=picture.now, watched_s=watched_s, patience=self._patience
            )
            for action in actions:
                await self._try(name, action, declared, picture.now, picture.errors)

    async def _try(
        self, name: str, action: Action, declared: Declared, now: datetime, errors: dict[tuple[str, str], str]
    ) -> None:
        digest = action.digest if isinstance(action, Create | Change | Taken) else ""
        try:
            await self._database.ride_out(lambda: self._carry_out(name, action, declared, now))
            problem = None
        except (LostTermError, StoreMisconfiguredError):
            raise
        except Exception as error:  # noqa: BLE001 - code that we do not know declared it: it costs nobody else anything
            problem = cut_text(str(error) or type(error).__name__, limits.ERROR_BYTES_MAX)
        if digest and errors.get((name, digest)) != problem:
            if problem is not None:
                log.error("declared schedule is not in force", extra={"schedule": name, "problem": problem})
            await self._database.ride_out(lambda: self._store.note_error(name, digest, problem))

    async def _carry_out(self, name: str, action: Action, declared: Declared, now: datetime) -> None:
        match action:
            case Create(digest=digest):
                spec = await self._spec(name, digest, declared, now)
                if await self._schedules.add(spec, by=BY, origin=Origin.STATIC, digest=digest):
                    log.info("a schedule appeared with its code", extra={"schedule": name})
            case Change(digest=digest):
                await self._change(await self._spec(name, digest, declared, now), digest)
            case Revive():
                await self._revive(name)
            case Idle():
                log.warning("no worker declares a schedule any more", extra={"schedule": name})
                await self._store.become(name, idle=True)
            case Inactivate():
                await self._inactivate(name)
            case Taken():
                raise InvalidScheduleError(
                    "name", f"there is a dynamic schedule {name!r}, which came first", remedy="rename or delete one"
                )
            case _:
                assert_never(action)

    async def _spec(self, name: str, digest: str, declared: Declared, now: datetime) -> ScheduleSpec:
        """The definition, checked as any other. It may come from a leader before us, and be of another version."""
        spec = declared.get((name, digest)) or await self._store.spec(name, digest)
        if spec is None:
            raise InvalidScheduleError("name", f"the declaration of {name!r} is gone", remedy="wait for a worker")
        defaults: HandlerDefaults | None = self._view.all_handlers.get(spec.handler)
        check_declaration(spec, now=now, zone=self._zone, defaults=defaults)
        return spec

    async def _change(self, spec: ScheduleSpec, digest: str) -> None:
        async with self._schedules.hold(spec.name, ScheduleWrite("change", spec.name, BY)) as held:
            if held is not None and held.row["origin"] == Origin.STATIC.value:
                same = same_recurrence(shown_spec_of(held.row), spec)
                await held.change(spec, by=BY, reason="its code changed", digest=digest, same_recurrence=same)
                log.info("a schedule changed with its code", extra={"schedule": spec.name})

    async def _revive(self, name: str) -> None:
        await self._store.become(name, idle=False)
        async with self._schedules.hold(name, ScheduleWrite("revive", name, BY)) as held:
            if held is not None and held.state is ScheduleState.INACTIVE:
                await held.resume(by=BY)
                log.info("a schedule is back with its code", extra={"schedule": name})

    async def _inactivate(self, name: str) -> None:
        async with self._schedules.hold(name, ScheduleWrite("inactivate", name, BY)) as held:
            if held is not None and held.state not in (ScheduleState.PAUSED, ScheduleState.INACTIVE):
                await held.inactivate()
                log.warning("a schedule is inactive: its code is gone", extra={"schedule": name})
