"""The CRON cases of docs/field-cases.md: what broke in other schedulers, with the exact instants (brute-forced)."""

from datetime import UTC, datetime
from itertools import pairwise
from time import process_time

import pytest

from jm_core.recurrence import InvalidScheduleError, check_fires, next_times, parse_recurrence

NOW = datetime(2024, 6, 1, tzinfo=UTC)


def instants(expression: str, zone: str, after: str, count: int) -> list[datetime]:
    return next_times(parse_recurrence("cron", expression, zone), datetime.fromisoformat(after), count)


CASES = {
    "BR-077": (
        ("0 20 * * *", "Europe/Paris", "2022-10-30T00:00+02:00"),
        ("2022-10-30T20:00+01:00", "2022-10-31T20:00+01:00", "2022-11-01T20:00+01:00"),
    ),
    "BR-078": (("0 0 * * *", "Europe/Warsaw", "2017-03-26T00:00+01:00"), ("2017-03-27T00:00+02:00",)),
    "BR-079": (
        ("0 1 * * *", "Europe/Berlin", "2020-10-24T01:30+02:00"),
        ("2020-10-25T01:00+02:00", "2020-10-26T01:00+01:00", "2020-10-27T01:00+01:00"),
    ),
    "BR-080": (
        ("0 8 * * 1", "Europe/Amsterdam", "2017-10-24T00:00Z"),
        ("2017-10-30T08:00+01:00", "2017-11-06T08:00+01:00"),
    ),
    "BR-081": (("0 0 * * *", "America/Sao_Paulo", "2018-02-17T00:05-02:00"), ("2018-02-18T00:00-03:00",)),
    "BR-081 from 00:00": (("0 0 * * *", "America/Sao_Paulo", "2018-02-17T00:00-02:00"), ("2018-02-18T03:00Z",)),
    "BR-081 from 01:05": (("0 0 * * *", "America/Sao_Paulo", "2018-02-17T01:05-02:00"), ("2018-02-18T03:00Z",)),
    "BR-081 from 03:05": (("0 0 * * *", "America/Sao_Paulo", "2018-02-17T03:05-02:00"), ("2018-02-18T03:00Z",)),
    "BR-083": (
        ("30 * * * *", "Europe/Helsinki", "2017-10-29T00:00Z"),
        ("2017-10-29T00:30Z", "2017-10-29T01:30Z", "2017-10-29T02:30Z", "2017-10-29T03:30Z"),
    ),
    "BR-083 every second hour": (
        ("0 1-23/2 * * *", "Europe/London", "2024-10-27T00:30+01:00"),
        ("2024-10-27T01:00+01:00", "2024-10-27T01:00+00:00", "2024-10-27T03:00+00:00"),
    ),
    "BR-084": (
        ("0 2 * * *", "US/Eastern", "2013-03-09T02:00-05:00"),
        ("2013-03-10T03:00-04:00", "2013-03-11T02:00-04:00"),
    ),
    "BR-085": (
        ("0 0 * * 0-4", "US/Central", "2021-03-12T00:01-06:00"),
        ("2021-03-14T00:00-06:00", "2021-03-15T00:00-05:00", "2021-03-16T00:00-05:00"),
    ),
    "BR-086": (
        ("0 * * * *", "US/Pacific", "2026-11-01T07:30Z"),
        ("2026-11-01T08:00Z", "2026-11-01T09:00Z", "2026-11-01T10:00Z", "2026-11-01T11:00Z"),
    ),
    "BR-087": (("4 16 * * *", "America/New_York", "2025-03-08T16:04-05:00"), ("2025-03-09T20:04Z",)),
    "BR-088": (("* * * */3 *", "America/New_York", "2015-02-15T00:00-05:00"), ("2015-04-01T00:00-04:00",)),
    "BR-089": (
        ("0 12 * * 0", "Europe/Berlin", "2022-03-24T12:00+01:00"),
        ("2022-03-27T12:00+02:00", "2022-04-03T12:00+02:00"),
    ),
    "BR-091": (("0 9 29 2 *", "UTC", "2016-02-29T09:00Z"), ("2020-02-29T09:00Z",)),
    "BR-091 from 2024": (("0 9 29 2 *", "UTC", "2024-02-29T09:00Z"), ("2028-02-29T09:00Z",)),
    "BR-091 over 2100": (("0 0 29 2 *", "UTC", "2096-03-01T00:00Z"), ("2104-02-29T00:00Z",)),
    "BR-093": (
        ("48 14 31 6 0", "UTC", "2024-06-01T00:00Z"),
        ("2024-06-02T14:48Z", "2024-06-09T14:48Z", "2024-06-16T14:48Z"),
    ),
    "BR-094": (
        ("0 0 13 * 5", "UTC", "2024-09-01T00:00Z"),
        tuple(f"2024-{day}T00:00Z" for day in ("09-06", "09-13", "09-20", "09-27", "10-04", "10-11")),
    ),
    "BR-095": (
        ("0 0 L * *", "UTC", "2015-09-30T00:00Z"),
        tuple(f"{day}T00:00Z" for day in ("2015-10-31", "2015-11-30", "2015-12-31", "2016-01-31", "2016-02-29")),
    ),
    "BR-096": (
        ("30 2 * * *", "America/New_York", "2024-03-09T12:00Z"),
        ("2024-03-10T07:00Z", "2024-03-11T02:30-04:00"),
    ),
    "BR-098 spring": (
        ("30 2 * * *", "Europe/Berlin", "2024-03-30T12:00Z"),
        ("2024-03-31T01:00Z", "2024-04-01T02:30+02:00"),
    ),
    "BR-098 autumn": (
        ("30 1 * * *", "America/New_York", "2024-11-02T12:00Z"),
        ("2024-11-03T05:30Z", "2024-11-04T06:30Z"),
    ),
    "BR-099 in the gap": (("15 2 * * *", "Australia/Lord_Howe", "2024-10-05T12:00Z"), ("2024-10-05T15:30Z",)),
    "BR-099 after the gap": (("30 2 * * *", "Australia/Lord_Howe", "2024-10-05T12:00Z"), ("2024-10-05T15:30Z",)),
    "BR-099 in the fold": (
        ("45 1 * * *", "Australia/Lord_Howe", "2024-04-06T12:00Z"),
        ("2024-04-06T14:45Z", "2024-04-07T15:15Z"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_case_from_the_field_comes_at_its_exact_instants(case: str):
    (expression, zone, after), expected = CASES[case]
    assert instants(expression, zone, after, len(expected)) == [datetime.fromisoformat(each) for each in expected]


def test_the_same_instant_never_comes_again_at_the_repeated_hour():
    """BR-083: a scheduler that is given the same next time for ever spins."""
    begin = process_time()
    for expression, zone in (("30 * * * *", "Europe/Helsinki"), ("0 1-23/2 * * *", "Europe/London")):
        found = instants(expression, zone, "2024-10-26T00:00Z", 100)
        assert all(earlier < later for earlier, later in pairwise(found))
    assert process_time() - begin < 0.1


@pytest.mark.parametrize(
    "expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31W 2 *", "0 0 * 2 MON#6"]
)
def test_an_impossible_date_is_refused_at_once(expression: str):
    """BR-092."""
    begin = process_time()
    with pytest.raises(InvalidScheduleError) as refused:
        check_fires(parse_recurrence("cron", expression, "UTC"), NOW)
    assert process_time() - begin < 0.1
    assert "never fires" in str(refused.value) or "MON#6" in str(refused.value)


def test_an_impossible_day_of_the_month_leaves_the_weekdays():
    """BR-093: the OR survives where one half of it can never be."""
    assert check_fires(parse_recurrence("cron", "48 14 31 6 0", "UTC"), NOW) is None


def test_people_are_told_that_it_is_or():
    """BR-094."""
    assert " OR " in parse_recurrence("cron", "0 0 13 * 5", "UTC").describe()
    for one_of_them in ("0 0 13 * *", "0 0 * * 5", "0 0 */2 * 5", "0 0 13 * */2"):
        assert " OR " not in parse_recurrence("cron", one_of_them, "UTC").describe()


def test_one_schedule_in_the_gap_does_not_keep_the_others_from_theirs():
    """BR-096: 49 others at their minutes, that one right after the gap."""
    after = datetime(2024, 3, 10, 6, 0, tzinfo=UTC)
    others = [parse_recurrence("cron", f"{minute} * * * *", "America/New_York") for minute in range(49)]
    expected = [after.replace(hour=7), *(after.replace(minute=minute) for minute in range(1, 49))]
    assert [each.after(after) for each in others] == expected
    assert parse_recurrence("cron", "30 2 * * *", "America/New_York").after(after) == after.replace(hour=7)


def test_the_next_run_does_not_depend_on_what_became_of_the_one_before():
    """BR-100: an occurrence is told by its instant, and each has another one."""
    found = instants("0 * * * *", "UTC", "2024-06-01T00:00Z", 24)
    assert len(set(found)) == 24
