"""Schedules beside their handlers: the decorator's part that makes and checks a definition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from jm_core.errors import InvalidJobError, InvalidNameError, InvalidScheduleError, InvalidSettingError
from jm_core.recurrence import KINDS
from jm_core.schedule_rules import ZONE_UNKNOWN, check_declaration
from jm_nats.handlers import Handler
from jm_nats.schedule_spec import schedule_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jm_core.api_schedules import ScheduleSpec


def declared(handler: Handler, *, name: str | None, args: Mapping[str, Any] | None, **fields: Any) -> ScheduleSpec:
    """The definition, checked as the coordinator will.

    Args:
        fields: as of ``ScheduleClient.add``, exactly one expression among them.

    Raises:
        InvalidSettingError: naming the schedule, and saying what is wrong in the expression's own words.
    """
    if not isinstance(handler, Handler):
        raise InvalidSettingError(
            f"schedule {name or ''!r}: @app.schedule(...) goes above @app.handler(...), and not onto {handler!r:.60}"
        )
    name = handler.name if name is None else name
    given = sum(fields.get(kind) is not None for kind in KINDS)
    if given != 1:
        raise InvalidSettingError(f"schedule {name!r}: give exactly one of {', '.join(KINDS)}, not {given}")
    try:
        spec = schedule_spec(name, handler.name, Raw(handler.encode_args(args or {})), **fields)
        check_declaration(spec, now=datetime.now(UTC), zone=ZONE_UNKNOWN, defaults=handler.defaults())
    except (InvalidScheduleError, InvalidJobError, InvalidNameError) as error:
        raise InvalidSettingError(f"schedule {name!r} of handler {handler.name!r}: {error}") from error
    return spec
