"""Schedules beside their handlers: the decorator's part that makes and checks a definition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, ScheduleSpec
from jm_core.errors import InvalidJobError, InvalidNameError, InvalidScheduleError, InvalidSettingError
from jm_core.schedule_rules import check_declaration
from jm_nats.handlers import Handler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jm_core.model import Priority

ZONE_UNKNOWN: Final = "UTC"  # which zone the cluster has is not known where code is imported


def declared(
    handler: Handler,
    *,
    name: str | None,
    kinds: Mapping[str, str | float | timedelta | None],
    args: Mapping[str, Any] | None,
    priority: Priority | None,
    misfire: MisfirePolicy | str,
    overlap: OverlapPolicy | str,
    **fields: Any,
) -> ScheduleSpec:
    """The definition, checked as the coordinator will.

    Args:
        kinds: by kind, the expression or None; exactly one is given.

    Raises:
        InvalidSettingError: naming the schedule, and saying what is wrong in the expression's own words.
    """
    if not isinstance(handler, Handler):
        raise InvalidSettingError(
            f"schedule {name or ''!r}: @app.schedule(...) goes above @app.handler(...), and not onto {handler!r:.60}"
        )
    name = handler.name if name is None else name
    given = {kind: expression_text(expression) for kind, expression in kinds.items() if expression is not None}
    if len(given) != 1:
        raise InvalidSettingError(f"schedule {name!r}: give exactly one of {', '.join(kinds)}, not {len(given)}")
    ((kind, expr),) = given.items()
    try:
        spec = ScheduleSpec(
            name=name,
            kind=kind,
            expr=expr,
            handler=handler.name,
            args=Raw(handler.encode_args(args or {})),
            priority=None if priority is None else priority.label,
            misfire=MisfirePolicy(misfire),
            overlap=OverlapPolicy(overlap),
            **fields,
        )
        check_declaration(spec, now=datetime.now(UTC), zone=ZONE_UNKNOWN, defaults=handler.defaults())
    except (InvalidScheduleError, InvalidJobError, InvalidNameError, ValueError, TypeError) as error:
        raise InvalidSettingError(f"schedule {name!r} of handler {handler.name!r}: {error}") from error
    return spec


def expression_text(expression: str | float | timedelta) -> str:
    """An interval may be a number of seconds or a ``timedelta``."""
    if isinstance(expression, timedelta):
        expression = expression.total_seconds()
    return expression if isinstance(expression, str) else f"{expression:.6f}".rstrip("0").rstrip(".")


def seconds(span: float | timedelta | None) -> float | None:
    return span.total_seconds() if isinstance(span, timedelta) else span
