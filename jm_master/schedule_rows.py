"""Rows of table ``schedule`` as the definitions and states that the pure parts work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, ScheduleSpec, SkipReason
from jm_core.model import PRIORITY_BY_LABEL, Priority
from jm_core.planning import Progress

if TYPE_CHECKING:
    import asyncpg

SPEC_COLUMNS = (
    "kind",
    "expr",
    "zone",
    "handler",
    "args",
    "lane",
    "priority",
    "max_attempts",
    "timeout_s",
    "metadata",
    "unique_key",
    "misfire",
    "misfire_limit",
    "misfire_window_s",
    "overlap",
    "jitter_s",
    "starts_at",
    "ends_at",
    "max_runs",
)


def spec_of(row: asyncpg.Record | dict[str, Any]) -> ScheduleSpec:
    """``args`` and ``metadata`` come as JSON texts. Raises ValueError for metadata that are no texts."""
    metadata = row["metadata"]
    return ScheduleSpec(
        name=row["name"],
        kind=row["kind"],
        expr=row["expr"],
        zone=row["zone"],
        handler=row["handler"],
        args=Raw(row["args"].encode()),
        lane=row["lane"],
        priority=None if row["priority"] is None else Priority(row["priority"]).label,
        max_attempts=row["max_attempts"],
        timeout_s=row["timeout_s"],
        metadata=None if metadata is None else msgspec.json.decode(metadata, type=dict[str, str]),
        unique_key=row["unique_key"],
        misfire=MisfirePolicy(row["misfire"]),
        misfire_limit=row["misfire_limit"],
        misfire_window_s=row["misfire_window_s"],
        overlap=OverlapPolicy(row["overlap"]),
        jitter_s=row["jitter_s"],
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        max_runs=row["max_runs"],
    )


def shown_spec_of(row: asyncpg.Record) -> ScheduleSpec:
    """For people; metadata that plain SQL wrote and that are no texts are shown as JSON."""
    try:
        return spec_of(row)
    except msgspec.MsgspecError:
        shown = msgspec.json.decode(row["metadata"])
        texts = {
            key: text if isinstance(text, str) else msgspec.json.encode(text).decode() for key, text in shown.items()
        }
        return spec_of({**row, "metadata": msgspec.json.encode(texts).decode()})


def columns_of(spec: ScheduleSpec) -> list[Any]:
    """The values of ``SPEC_COLUMNS``; of a spec that was checked."""
    values = {name: getattr(spec, name) for name in SPEC_COLUMNS}
    values["args"] = "{}" if spec.args is None or bytes(spec.args) == b"null" else bytes(spec.args).decode()
    values["priority"] = None if spec.priority is None else int(PRIORITY_BY_LABEL[spec.priority])
    values["metadata"] = None if spec.metadata is None else msgspec.json.encode(spec.metadata).decode()
    values["misfire"], values["overlap"] = spec.misfire.value, spec.overlap.value
    return list(values.values())


def progress_of(row: asyncpg.Record) -> Progress:
    reason = row["floor_reason"]
    return Progress(
        since=row["since_at"],
        next_at=row["next_at"],
        floor_at=row["floor_at"],
        floor_reason=None if reason is None else SkipReason(reason),
        queued=row["queued_at"],
        left_out=frozenset(row["left_out"]),
        blocker=row["blocker"],
        runs=row["runs"],
        is_done=row["state"] == "done",
    )
