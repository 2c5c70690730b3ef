"""Schedules, their times and their skips as a person reads them."""

from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import Struct

from jm_cli.render import brief_moment, json_text, moment, print_json, print_line, print_record, print_table, say
from jm_core.api_schedules import ScheduleList, ScheduleSpec, ScheduleView, SkipList
from jm_core.recurrence import Recurrence, load_zone, next_times


class TimeShown(Struct):
    utc: datetime
    local: datetime  # the same instant, with the zone's offset


class TimesShown(Struct):
    """What ``preview --json`` prints. ``more``: there are later ones (as many as asked for were found)."""

    kind: str
    expression: str
    zone: str
    description: str
    after: datetime
    times: list[TimeShown]
    more: bool


def show_times(
    recurrence: Recurrence, since: datetime, count: int, *, as_json: bool, until: datetime | None = None
) -> None:
    """The next times in the schedule's zone and in UTC; what the expression means is said beside them."""
    zone = load_zone(recurrence.zone)
    found = [at for at in next_times(recurrence, since, count) if until is None or at <= until]
    times = [TimeShown(at, at.astimezone(zone)) for at in found]
    meaning = recurrence.describe()
    shown = TimesShown(
        recurrence.kind, recurrence.text, recurrence.zone, meaning, since, times, more=len(times) == count
    )
    print_json(shown) if as_json else print_times(shown)


def print_times(shown: TimesShown) -> None:
    print_line(shown.description)
    rows = [
        (f"{each.local:%a}", each.local.strftime("%Y-%m-%d %H:%M:%S%z"), f"{each.utc:%Y-%m-%dT%H:%M:%SZ}")
        for each in shown.times
    ]
    print_table(("DAY", f"IN {shown.zone}", "UTC"), rows)
    if not shown.more:
        say("there is none after that")


def print_schedules(found: ScheduleList) -> None:
    if not found.schedules:
        say("no such schedules")
        return
    rows = [
        (
            view.spec.name,
            view.state.value,
            view.spec.handler,
            f"{view.spec.kind}: {' '.join(view.spec.expr.split())}",
            view.zone,
            brief_moment(view.next_at),
            brief_moment(view.last_at),
            str(view.runs),
            f"{view.skipped}{'+' * view.skipped_more}",
        )
        for view in found.schedules
    ]
    columns = ("NAME", "STATE", "HANDLER", "WHEN", "ZONE", "NEXT", "LAST", "RUNS", "SKIPPED")
    print_table(columns, rows, minor=("SKIPPED", "RUNS", "LAST", "ZONE"))
    if found.more:
        say(f"there are more: --after {found.schedules[-1].spec.name}")


def print_schedule(view: ScheduleView) -> None:
    spec = view.spec
    print_record(
        [
            ("name", spec.name),
            ("state", view.state.value),
            ("error", view.error or ""),
            ("note", view.note or ""),
            ("handler", spec.handler),
            ("when", f"{spec.kind}: {spec.expr}"),
            ("meaning", view.description),
            ("zone", view.zone),
            ("next", _in_zone(view.upcoming, view.zone)),
            ("last", moment(view.last_at)),
            ("planned to", moment(view.planned_to)),
            ("runs", str(view.runs)),
            ("skipped", f"{view.skipped}{' or more' * view.skipped_more}" if view.skipped else ""),
            ("unfinished", str(view.unfinished) if view.unfinished else ""),
            ("waits", moment(view.queued_instant)),
            *_definition(spec),
            ("origin", view.origin.value),
            ("revision", str(view.revision)),
            ("created", _when_and_who(view.created_at, view.created_by)),
            ("updated", _when_and_who(view.updated_at, view.updated_by)),
            ("paused by", view.paused_by or ""),
            ("seen", moment(view.seen_at)),
        ]
    )
    if spec.args is not None and bytes(spec.args) not in (b"{}", b"null"):
        print_line("\nargs:")
        print_record([("", json_text(spec.args))])


def _definition(spec: ScheduleSpec) -> list[tuple[str, str]]:
    limit = f", the newest {spec.misfire_limit}" if spec.misfire == "run_all" else ""
    window = "" if spec.misfire_window_s is None else f", at most {spec.misfire_window_s:g} s late"
    return [
        ("misfire", f"{spec.misfire.value}{limit}{window}"),
        ("overlap", spec.overlap.value),
        ("jitter", f"{spec.jitter_s:g} s" if spec.jitter_s else ""),
        ("start", moment(spec.starts_at)),
        ("end", moment(spec.ends_at)),
        ("max runs", str(spec.max_runs or "")),
        ("lane", spec.lane or ""),
        ("priority", spec.priority or ""),
        ("attempts", str(spec.max_attempts or "")),
        ("timeout", "" if spec.timeout_s is None else f"{spec.timeout_s:g} s"),
        ("unique key", spec.unique_key or ""),
        ("metadata", "\n".join(f"{key}={value}" for key, value in (spec.metadata or {}).items())),
    ]


def print_changed(view: ScheduleView, done: str) -> None:
    """One line of what has become of it; the rest is for ``show``."""
    name = view.spec.name
    print_line(f"{done} {name}")
    if view.cancelled_planned:
        say(f"{view.cancelled_planned} planned jobs were taken back")
    if view.note:
        say(view.note)
    if done == "deleted":
        return
    if view.error:
        say(f"it is {view.state.value}: {view.error}")
    elif view.next_at is None:
        say(f"it is {view.state.value}; no next time is planned")
    else:
        say(f"{view.description}; next: {_in_zone([view.next_at], view.zone)}")


def print_skips(found: SkipList) -> None:
    if not found.skips:
        say("nothing was skipped")
        return
    rows = [
        (
            str(skip.skip_id),
            skip.schedule,
            brief_moment(skip.first_at),
            brief_moment(skip.last_at),
            f"{skip.count}{'+' * skip.more}",
            skip.reason,
            skip.detail,
            brief_moment(skip.recorded_at),
        )
        for skip in found.skips
    ]
    columns = ("NUMBER", "SCHEDULE", "FROM", "TO", "TIMES", "REASON", "DETAIL", "RECORDED")
    print_table(columns, rows, minor=("RECORDED", "NUMBER", "TO"))


def _in_zone(times: list[datetime], zone: str) -> str:
    """Every time as the schedule's own wall clock shows it, with the offset."""
    there = ZoneInfo(zone)
    return "\n".join(at.astimezone(there).strftime("%a %Y-%m-%d %H:%M:%S%z") for at in times)


def _when_and_who(at: datetime | None, by: str) -> str:
    return f"{moment(at)} by {by}" if at and by else moment(at)
