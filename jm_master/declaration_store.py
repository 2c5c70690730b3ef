"""Table ``schedule_version``: what code declares, and when it was first and last seen."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from jm_core.api_schedules import Origin, ScheduleSpec, ScheduleState
from jm_core.static_schedules import Known, Version
from jm_master.queries import named
from jm_master.terms import LostTermError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jm_core.ids import Term
    from jm_master.database import Database

Declared = dict[tuple[str, str], ScheduleSpec]  # by name and digest


class Picture(msgspec.Struct):
    """Every name that code declares or has declared. ``now``: the master's clock; None: there is none."""

    versions: dict[str, list[Version]]
    known: dict[str, Known]
    errors: dict[tuple[str, str], str]
    now: datetime | None


class DeclarationStore:
    """Every method raises what ``SaveStore.save`` does; those that write also LostTermError."""

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._sql = named("declaration", database.schema)

    async def note(self, declared: Mapping[tuple[str, str], ScheduleSpec]) -> None:
        """They are seen now."""
        names, digests = [name for name, _ in declared], [digest for _, digest in declared]
        specs = [msgspec.json.encode(spec).decode() for spec in declared.values()]
        if not await self._database.fetchval(self._sql["note_declared"], self._term, names, digests, specs):
            raise LostTermError(self._term)

    async def load(self) -> Picture:
        picture = Picture({}, {}, {}, None)
        for row in await self._database.fetch(self._sql["load_declared"]):
            name, digest = row["name"], row["digest"]
            picture.now = row["now"]
            versions = picture.versions.setdefault(name, [])
            if digest is not None:
                versions.append(Version(name, digest, row["first_seen_at"], row["last_seen_at"]))
                if row["error"] is not None:
                    picture.errors[name, digest] = row["error"]
            if row["state"] is not None:
                picture.known[name] = Known(Origin(row["origin"]), ScheduleState(row["state"]), row["in_force"])
        return picture

    async def spec(self, name: str, digest: str) -> ScheduleSpec | None:
        text = await self._database.fetchval(self._sql["load_version"], name, digest)
        return None if text is None else msgspec.json.decode(text, type=ScheduleSpec)

    async def note_error(self, name: str, digest: str, error: str | None) -> None:
        """Why this declaration is not in force; None: it is."""
        await self._database.fetch(self._sql["note_error"], name, digest, error)

    async def become(self, name: str, *, idle: bool) -> None:
        await self._database.fetch(self._sql["become_idle" if idle else "become_active"], self._term, name)

    async def forget(self, older_s: float) -> None:
        await self._database.fetch(self._sql["forget_versions"], older_s)
