"""What a client refuses of a schedule: what a coordinator would, too, in whichever zone and by whichever clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jm_core.errors import InvalidScheduleError
from jm_core.schedule_rules import check_spec
from jm_nats.schedule_client import checked_spec
from jm_nats.schedule_spec import schedule_spec

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
# By definition, the cluster's zone: what a coordinator takes.
TAKEN: list[tuple[str, dict[str, Any], str]] = [
    # 09:00 in Berlin is 08:00 UTC.
    (
        "end_by_zone",
        {
            "cron": "0 9 1 1 *",
            "starts_at": NEW_YEAR + timedelta(hours=7),
            "ends_at": NEW_YEAR + timedelta(hours=8, minutes=30),
        },
        "Europe/Berlin",
    ),
    # The clocks go back: two hours between them on that day only.
    (
        "jitter_by_zone",
        {
            "cron": "0 1,3 25 10 *",
            "starts_at": datetime(2026, 10, 24, 20, tzinfo=UTC),
            "ends_at": datetime(2026, 10, 25, 6, tzinfo=UTC),
            "jitter": 2.5 * 3600,
        },
        "Europe/Berlin",
    ),
    ("interval", {"every": "5m", "jitter": 299}, "Europe/Berlin"),
    ("until", {"rrule": "FREQ=DAILY;UNTIL=20260603T000000Z"}, "Pacific/Auckland"),
    ("end_soon", {"every": "5m", "ends_at": NOW + timedelta(minutes=6)}, "UTC"),
]
CLOCKS = [timedelta(0), timedelta(hours=1), timedelta(days=9), timedelta(days=-9), timedelta(days=-20_000)]


@pytest.mark.parametrize("wrong_by", CLOCKS, ids=lambda by: f"{by.total_seconds():.0f}s")
@pytest.mark.parametrize(("fields", "zone"), [t[1:] for t in TAKEN], ids=[t[0] for t in TAKEN])
def test_the_client_lets_pass_what_a_coordinator_takes(fields: dict[str, Any], zone: str, wrong_by: timedelta) -> None:
    spec = schedule_spec("s", "h", **fields)
    check_spec(spec, now=NOW, cluster_zone=zone, handlers={})
    assert checked_spec(spec, now=NOW + wrong_by) is spec


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("date", {"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "never fires"),
    ("until", {"rrule": "FREQ=DAILY;UNTIL=20200101T000000Z"}, "never fires"),
    ("end", {"cron": "0 9 * * *", "ends_at": datetime(2020, 1, 1, tzinfo=UTC)}, "ends_at: "),
    (
        "window",
        {"cron": "0 9 1 1 *", "starts_at": NEW_YEAR + timedelta(days=3), "ends_at": NEW_YEAR + timedelta(days=90)},
        "ends_at: ",
    ),
    ("jitter", {"every": "5m", "jitter": timedelta(minutes=5)}, "as long as the interval"),
    ("naive", {"every": "5m", "ends_at": datetime(2030, 1, 1)}, "no offset"),  # noqa: DTZ001
]


@pytest.mark.parametrize(("fields", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_could_be_due_nowhere_is_refused_before_anything_is_sent(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidScheduleError, match=words):
        checked_spec(schedule_spec("s", "h", **fields), now=NOW)
