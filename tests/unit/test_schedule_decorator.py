"""Schedules declared beside their handlers: what is made of them, and what is refused at import."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, ScheduleSpec
from jm_core.errors import InvalidSettingError
from jm_core.model import Priority
from jm_nats import JobMaster

app = JobMaster("c", servers="nats://127.0.0.1:1")


def declare(**options: Any) -> ScheduleSpec:
    jm = JobMaster("c")

    @jm.schedule(**options)
    @jm.handler("report", lane="reports")
    async def report(region: str = "eu", day: int = 1) -> None: ...

    (spec,) = jm.schedules.values()
    return spec


def test_a_declaration_has_the_handlers_name_and_leaves_its_defaults_to_it() -> None:
    spec = declare(cron="0 9 * * 1-5", zone="Europe/Berlin", args={"region": "us"})
    assert (spec.name, spec.handler, spec.kind, spec.expr) == ("report", "report", "cron", "0 9 * * 1-5")
    assert (spec.zone, spec.lane, spec.priority) == ("Europe/Berlin", None, None)
    assert spec.args is not None
    assert msgspec.json.decode(spec.args) == {"region": "us"}


def test_all_options_arrive() -> None:
    spec = declare(
        every=timedelta(minutes=90),
        name="often",
        priority=Priority.HIGH,
        timeout=timedelta(seconds=30),
        misfire="run_all",
        misfire_limit=5,
        misfire_window=timedelta(hours=1),
        overlap=OverlapPolicy.SKIP,
        jitter=2.5,
        unique_key="k",
        metadata={"team": "x"},
        ends_at=datetime(2020, 1, 1, tzinfo=UTC),
        max_runs=3,
    )
    assert (spec.kind, spec.expr, spec.priority, spec.timeout_s) == ("every", "5400", "high", 30.0)
    assert (spec.misfire, spec.overlap, spec.misfire_window_s) == (MisfirePolicy.RUN_ALL, OverlapPolicy.SKIP, 3600.0)
    assert spec.ends_at == datetime(2020, 1, 1, tzinfo=UTC), "an end that has passed must not stop a worker's start"


def test_several_are_stacked_and_the_handler_stays_callable() -> None:
    jm = JobMaster("c")

    @jm.schedule(every=60, name="often")
    @jm.schedule(plain="every day at 18:00")
    @jm.handler("report")
    def report() -> int:
        return 7

    assert set(jm.schedules) == {"often", "report"}
    assert report() == 7


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, "exactly one of cron, every, rrule, plain"),
    ("two", {"cron": "* * * * *", "every": 5}, "exactly one"),
    ("expression", {"cron": "61 * * * *"}, "61"),
    ("interval", {"every": 0.5}, "less than a second"),
    ("zone", {"cron": "* * * * *", "zone": "Europe/Berln"}, "Europe/Berlin"),
    ("args", {"cron": "* * * * *", "args": {"day": "x"}}, "day"),
    ("unknown_arg", {"cron": "* * * * *", "args": {"dya": 1}}, "dya"),
    ("misfire", {"cron": "* * * * *", "misfire": "maybe"}, "maybe"),
    ("jitter", {"every": 10, "jitter": 10}, "as long as the interval"),
    ("jitter_type", {"every": 10, "jitter": "5m"}, "schedule, jitter_s: Expected `float`, got `str`"),
    ("runs_type", {"every": 10, "max_runs": "3"}, "schedule, max_runs: Expected `int | null`, got `str`"),
    ("timeout_type", {"every": 10, "timeout": "5m"}, "schedule, timeout_s: Expected `float | null`, got `str`"),
    ("zone_type", {"every": 10, "zone": 5}, "schedule, zone: Expected `str | null`, got `int`"),
    ("start_type", {"every": 10, "starts_at": "2030-01-01"}, "schedule, starts_at: Invalid RFC3339"),
    ("metadata_type", {"every": 10, "metadata": {"a": 1}}, "Expected `str`, got `int`"),
    ("misfire_value", {"every": 10, "misfire": "never"}, "schedule, misfire: Invalid enum value 'never'"),
    ("bool", {"every": True}, "schedule, every: True is of type bool"),
    ("list", {"every": [1]}, "schedule, every: [1] is of type list"),
    ("number", {"cron": 5}, "schedule, cron: 5 is of type int"),
    ("nan", {"every": float("nan")}, "nan"),
    ("not_json", {"every": 10, "unique_key": object()}, "object"),
    ("runs", {"every": 10, "max_runs": 0}, "max_runs"),
    ("name", {"every": 10, "name": "a b"}, "must match"),
    ("naive_start", {"every": 10, "starts_at": datetime(2030, 1, 1)}, "no offset"),  # noqa: DTZ001
    ("lane", {"every": 10, "lane": "a.b"}, "lane"),
]


@pytest.mark.parametrize(("options", "word"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_wrong_declaration_is_refused_at_import_and_names_the_schedule(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidSettingError, match="schedule") as caught:
        declare(**options)
    assert word in str(caught.value)


def test_below_its_handler_it_says_where_it_belongs() -> None:
    with pytest.raises(InvalidSettingError, match=r"goes above @app\.handler"):

        @app.schedule(every=60)  # type: ignore[arg-type]
        def report() -> None: ...


def test_a_name_is_given_once() -> None:
    jm = JobMaster("c")
    with pytest.raises(InvalidSettingError, match="give it a name"):

        @jm.schedule(every=60)
        @jm.schedule(every=90)
        @jm.handler("report")
        def report() -> None: ...
