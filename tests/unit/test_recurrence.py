"""Expressions of every kind: what they mean, and what is refused with which words."""

import pickle
from datetime import UTC, datetime, timedelta
from time import process_time
from zoneinfo import ZoneInfo

import pytest

from jm_core.recurrence import (
    InvalidScheduleError,
    check_fires,
    guess_kind,
    load_zone,
    next_times,
    parse_recurrence,
)

ANCHOR = datetime(2026, 1, 7, 10, 0, tzinfo=UTC)  # a Wednesday


def local(kind: str, text: str, count: int, *, zone: str = "Europe/Berlin", after: datetime = ANCHOR) -> list[str]:
    recurrence = parse_recurrence(kind, text, zone, anchor=ANCHOR)
    shown = [each.astimezone(ZoneInfo(recurrence.zone)) for each in next_times(recurrence, after, count)]
    return [f"{each:%a %m-%d %H:%M}" + (f":{each:%S}" if each.second else "") for each in shown]


PLAIN = {
    "every 30 minutes between 09:00 and 18:00": ["Wed 01-07 11:30", "Wed 01-07 12:00"],
    "every 6 hours between 09:00 and 18:00": ["Wed 01-07 15:00", "Thu 01-08 09:00"],
    "every 9 hours between 09:00 and 18:00": ["Wed 01-07 18:00", "Thu 01-08 09:00"],  # both ends belong to it
    "every 90 minutes between 22:00 and 02:00": ["Wed 01-07 22:00", "Wed 01-07 23:30", "Thu 01-08 01:00"],
    "every hour between 8 and 9 on weekends": ["Sat 01-10 08:00", "Sat 01-10 09:00", "Sun 01-11 08:00"],
    "every hour between fri and mon between 12:00 and 12:30": ["Fri 01-09 12:00", "Sat 01-10 12:00", "Sun 01-11 12:00"],
    "every 12 hours on monday": ["Mon 01-12 00:00", "Mon 01-12 12:00", "Mon 01-19 00:00"],
    "every day between mon and fri at 18:00 in America/New_York": ["Wed 01-07 18:00", "Thu 01-08 18:00"],
    "every month on the last day at 23:00": ["Sat 01-31 23:00", "Sat 02-28 23:00", "Tue 03-31 23:00"],
    "every month on the 31st": ["Sat 01-31 00:00", "Tue 03-31 00:00", "Sun 05-31 00:00"],
    "every month on day 1, 15 at 6:30": ["Thu 01-15 06:30", "Sun 02-01 06:30"],
    "every month on the first monday at 9:00": ["Mon 02-02 09:00", "Mon 03-02 09:00"],
    "every month on the last friday at 5pm": ["Fri 01-30 17:00", "Fri 02-27 17:00"],
    "every month on the last weekday at 17:00": ["Fri 01-30 17:00", "Fri 02-27 17:00", "Tue 03-31 17:00"],
    "every 3 months on the 1st": ["Wed 04-01 00:00", "Wed 07-01 00:00"],
    "every weekday at 9:00": ["Thu 01-08 09:00", "Fri 01-09 09:00", "Mon 01-12 09:00"],
    "every weekend at noon": ["Sat 01-10 12:00", "Sun 01-11 12:00"],
    "EVERY  Monday, Thursday and Sat AT 08:30 and 20:00": ["Thu 01-08 08:30", "Thu 01-08 20:00", "Sat 01-10 08:30"],
    "every 2 weeks on monday at 9:00": ["Mon 01-19 09:00", "Mon 02-02 09:00"],
    "every week on tue": ["Tue 01-13 00:00", "Tue 01-20 00:00"],
    "every 2 days at 6:00": ["Fri 01-09 06:00", "Sun 01-11 06:00"],
    "every day at 12am and 12pm and 23:59:30": ["Wed 01-07 12:00", "Wed 01-07 23:59:30", "Thu 01-08 00:00"],
    "every day": ["Thu 01-08 00:00", "Fri 01-09 00:00"],
    "every 2 hours": ["Wed 01-07 13:00", "Wed 01-07 15:00"],
    "every 45 seconds": ["Wed 01-07 11:00:45", "Wed 01-07 11:01:30"],
    "every 1h30m": ["Wed 01-07 12:30", "Wed 01-07 14:00"],
    "every 1h between 9 and 17 in Asia/Tokyo": ["Thu 01-08 09:00", "Thu 01-08 10:00"],
    "every year on 24 december at 12:00": ["Thu 12-24 12:00", "Fri 12-24 12:00"],
    "every year on the 1st of may": ["Fri 05-01 00:00", "Sat 05-01 00:00"],
    "every year on february 29th at 9:00": ["Tue 02-29 09:00", "Sun 02-29 09:00"],
}


@pytest.mark.parametrize("text", PLAIN)
def test_plain_language_means_what_it_says(text: str):
    expected = PLAIN[text]
    assert local("plain", text, len(expected)) == expected
    assert guess_kind(text) == "plain"


EVERY = {"90": 90, "90s": 90, "15m": 900, "1h30m": 5_400, "1h 30m": 5_400, "1.5h": 5_400, "1d": 86_400, "2W": 1_209_600}


@pytest.mark.parametrize("text", EVERY)
def test_an_interval_counts_from_its_anchor_in_real_time(text: str):
    step = timedelta(seconds=EVERY[text])
    recurrence = parse_recurrence("every", text, "Europe/Berlin", anchor=ANCHOR)
    assert next_times(recurrence, ANCHOR, 3) == [ANCHOR + step, ANCHOR + 2 * step, ANCHOR + 3 * step]
    assert recurrence.after(ANCHOR - timedelta(days=400)) == ANCHOR
    far = ANCHOR + timedelta(days=3_000)
    following = recurrence.after(far)
    assert following is not None
    assert far < following <= far + step
    assert (following - ANCHOR) % step == timedelta(0)
    assert guess_kind(text) == "every"


RULES = {
    "FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=9;BYMINUTE=0": ["Mon 01-12 09:00", "Wed 01-14 09:00"],
    "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;COUNT=2": ["Fri 01-30 17:00", "Fri 02-27 17:00"],
    "DTSTART;TZID=America/New_York:20260308T023000 RRULE:FREQ=DAILY": ["Sun 03-08 03:00", "Mon 03-09 02:30"],
    "DTSTART:20260301T090000Z\nRRULE:FREQ=DAILY": ["Sun 03-01 10:00", "Mon 03-02 10:00"],
    "DTSTART;VALUE=DATE:20260301 FREQ=DAILY": ["Sun 03-01 00:00", "Mon 03-02 00:00"],
    "FREQ=DAILY;UNTIL=20260108": ["Thu 01-08 11:00"],
    "FREQ=DAILY;UNTIL=20260108T095959Z": [],
    "FREQ=DAILY;UNTIL=20260108T100000Z": ["Thu 01-08 11:00"],
    "FREQ=DAILY;UNTIL=20260108T110000": ["Thu 01-08 11:00"],
    "FREQ=DAILY;COUNT=3": ["Thu 01-08 11:00", "Fri 01-09 11:00"],  # the first of the three is the anchor
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1": ["Fri 01-30 11:00", "Fri 02-27 11:00"],
    "FREQ=HOURLY;INTERVAL=5;BYDAY=SA": ["Sat 01-10 04:00", "Sat 01-10 09:00"],
    "freq=yearly;bymonth=2;bymonthday=29": ["Tue 02-29 11:00"],
}


@pytest.mark.parametrize("text", RULES)
def test_a_rule_follows_rfc_5545_in_its_zone(text: str):
    expected = RULES[text]
    found = local("rrule", text, max(1, len(expected)) + ("UNTIL" in text or "COUNT" in text))
    assert found == expected
    assert guess_kind(text) == "rrule"


CRON = {
    "0 9 15W * *": ["Thu 01-15 09:00", "Mon 02-16 09:00", "Mon 03-16 09:00"],  # 15 February is a Sunday
    "0 9 1W 8 *": ["Mon 08-03 09:00"],  # 1 August is a Saturday: not back into July
    "0 9 31W 5 *": ["Fri 05-29 09:00"],  # 31 May is a Sunday: not on into June
    "0 9 LW * *": ["Fri 01-30 09:00", "Fri 02-27 09:00"],
    "0 9 15W,L 2 *": ["Mon 02-16 09:00", "Sat 02-28 09:00"],
    "0 9 * * MON#2": ["Mon 01-12 09:00", "Mon 02-09 09:00"],
    "0 9 * * 5L": ["Fri 01-30 09:00", "Fri 02-27 09:00"],
    "0 9 * * MON-SUN": ["Thu 01-08 09:00", "Fri 01-09 09:00"],
    "0 9 * * sat-sun": ["Sat 01-10 09:00", "Sun 01-11 09:00"],
    "0 9 * * 7": ["Sun 01-11 09:00", "Sun 01-18 09:00"],
    "0 9 * jun-aug/2 *": ["Mon 06-01 09:00", "Tue 06-02 09:00"],
    "*/20 30 11 * * *": ["Wed 01-07 11:30", "Wed 01-07 11:30:20", "Wed 01-07 11:30:40", "Thu 01-08 11:30"],
    "0 0 */10 * 6": ["Sat 01-31 00:00", "Sat 02-21 00:00"],  # begins with *: both have to match, as in Vixie cron
    "@monthly": ["Sun 02-01 00:00", "Sun 03-01 00:00"],
    "@hourly": ["Wed 01-07 12:00"],
}


@pytest.mark.parametrize("text", CRON)
def test_cron_knows_names_steps_and_its_letters(text: str):
    assert local("cron", text, len(CRON[text])) == CRON[text]
    assert guess_kind(text) == "cron"


BACKWARDS = [
    ("0 22-2 * * *", "22-23,0-2"),
    ("0 22-4/2 * * *", "22,0,2,4"),
    ("50-10 * * * *", "50-59,0-10"),
    ("0 0 28-3 * *", "28-31,1-3"),
    ("0 0 * NOV-FEB *", "NOV-DEC,JAN-FEB"),
    ("0 0 * 12-2 *", "12,1-2"),
    ("0 0 * * FRI-MON", "FRI-SAT,SUN-MON"),
    ("0 0 * * SAT-MON/2", "SAT,MON"),
    ("0 0 * * 7-2", "0-2"),
]


@pytest.mark.parametrize(("text", "instead"), BACKWARDS, ids=[text.replace(" ", "_") for text, _ in BACKWARDS])
def test_a_range_that_runs_backwards_is_told_how_to_be_written(text: str, instead: str):
    with pytest.raises(InvalidScheduleError, match="backwards") as caught:
        parse_recurrence("cron", text, "UTC")
    assert caught.value.remedy == f"write {instead}"
    wrong = next(item for item in text.split() if "-" in item)
    parse_recurrence("cron", text.replace(wrong, instead), "UTC")  # and can be


@pytest.mark.parametrize(
    ("item", "days"), [("L-3", "=-4"), ("L-0", "=-1"), ("L-30", "=-31"), ("L-40", ""), ("L-3W", "")]
)
def test_days_before_the_last_are_told_as_an_rrule_counts_them(item: str, days: str):
    with pytest.raises(InvalidScheduleError) as caught:
        parse_recurrence("cron", f"0 6 {item} * *", "UTC")
    assert caught.value.remedy == f"use --rrule with BYMONTHDAY{days}"


def test_a_length_that_is_too_long_is_named_as_it_was_written():
    with pytest.raises(InvalidScheduleError, match="'999999 hours' is longer than"):
        parse_recurrence("plain", "every 999999 hours", "UTC")


NEAREST = [
    ("0 0 31W * *", "At 00:00 on the weekday nearest to day 31 of the month (if it has one), UTC"),
    ("0 0 15W 1 *", "At 00:00 in January on the weekday nearest to day 15 of the month, UTC"),
    ("0 9 15W,L * *", "At 09:00 on the last day of every month and on the weekday nearest to day 15 of the month, UTC"),
    ("0 0 15W * 5", "At 00:00 on the weekday nearest to day 15 of the month OR at 00:00 on Friday, UTC"),
]


@pytest.mark.parametrize(("text", "words"), NEAREST, ids=[text.replace(" ", "_") for text, _ in NEAREST])
def test_the_nearest_weekday_is_described_as_one_day(text: str, words: str):
    assert parse_recurrence("cron", text, "UTC").describe() == words


REFUSED = [
    ("cron", "61 * * * *", 1, "minute"),
    ("cron", "0 9,24 * * *", 5, "hour"),
    ("cron", "0 9 * * MON,TUES", 13, "day of week"),
    ("cron", "* * * *", None, "4 fields"),
    ("cron", "0 0 9 * * MON 2027", None, "year"),
    ("cron", "*/90 * * * *", 1, "step of 90"),
    ("cron", "*/0 * * * *", 1, "minute"),
    ("cron", "0 22-2 * * *", 3, "backwards"),
    ("cron", "0 0 L-3 * *", 5, "BYMONTHDAY"),
    ("cron", "0 0 ? * *", 5, "Quartz"),
    ("cron", "0 0 1,,2 * *", 7, "two commas"),
    ("cron", "0 0 32W * *", 5, "day of month"),
    ("cron", "@reboot", 1, "@daily"),
    ("cron", "0 0 31 2 *", None, "never fires"),
    ("cron", "0 9 * * \u0661", 9, "ASCII"),
    ("cron", " ", None, "empty"),
    ("cron", "0," * 600 + "0 * * * *", None, "1000"),
    ("every", "0.5", None, "less than a second"),
    ("every", "5000d", None, "3660 days"),
    ("every", "1m1h", 3, "larger units"),
    ("every", "1h5x", 3, "'5x'"),
    ("every", "-5m", 1, "'-5m'"),
    ("every", "9" * 40, 1, "no length"),
    ("rrule", "FREQ=FOO", 6, "DAILY"),
    ("rrule", "BYDAY=MO", None, "no FREQ"),
    ("rrule", "FREQ=DAILY;FOO=1", 12, "'FOO=1'"),
    ("rrule", "FREQ=DAILY;BYHOUR=9,24", 21, "0 to 23"),
    ("rrule", "FREQ=DAILY;BYMONTHDAY=0", 23, "-31 to -1"),
    ("rrule", "FREQ=DAILY;INTERVAL=0", 21, "1 to"),
    ("rrule", "FREQ=DAILY;COUNT=99999", 18, "1 to 1000"),
    ("rrule", "FREQ=DAILY;COUNT=1;UNTIL=20270101", 26, "together"),
    ("rrule", "FREQ=DAILY;UNTIL=20260230", 18, "UNTIL"),
    ("rrule", "FREQ=DAILY;UNTIL=tomorrow", 18, "UNTIL"),
    ("rrule", "FREQ=DAILY;FREQ=DAILY", 12, "twice"),
    ("rrule", "FREQ=DAILY;BYDAY=1MO", 18, "number"),
    ("rrule", "FREQ=MONTHLY;BYDAY=6MO", 20, "'6MO'"),
    ("rrule", "FREQ=WEEKLY;BYMONTHDAY=1", 24, "WEEKLY"),
    ("rrule", "FREQ=DAILY;BYSETPOS=1", 21, "BYSETPOS"),
    ("rrule", "FREQ=HOURLY;BYMINUTE=1;BYSETPOS=1", 33, "BYSETPOS"),
    ("rrule", "FREQ=WEEKLY;WKST=XX", 18, "MO"),
    ("rrule", "FREQ=DAILY EXDATE:20260101", 12, "EXDATE"),
    ("rrule", "FREQ=DAILY RRULE:FREQ=DAILY", 18, "2 rules"),
    ("rrule", "DTSTART:20260230 FREQ=DAILY", 9, "DTSTART"),
    ("rrule", "DTSTART;FOO=1:20260101 FREQ=DAILY", 8, "DTSTART"),
    (
        "rrule",
        "FREQ=DAILY;BYHOUR=0,1;BYMINUTE="
        + ",".join(map(str, range(60)))
        + ";BYSECOND="
        + ",".join(map(str, range(60))),
        None,
        "7200 times a day",
    ),
    ("plain", "hourly", 1, "every"),
    ("plain", "every", 6, "day(s)"),
    ("plain", "every fooday", 7, "a weekday"),
    ("plain", "every 0 minutes", 7, "from 1"),
    ("plain", "every 2 monday", 9, "hour(s)"),
    ("plain", "every day at", 13, "a time"),
    ("plain", "every day at 25:00", 14, "00:00-23:59"),
    ("plain", "every day at 13pm", 14, "a time"),
    ("plain", "every day at 9:00 please", 19, "the end"),
    ("plain", "every day at 9:00 in Mars/Phobos", 22, "no time zone"),
    ("plain", "every day at 9:00 in", 21, "a zone"),
    ("plain", "every day between mon and", 26, "a weekday"),
    ("plain", "every day between 9:00 and 10:00", 19, "a weekday"),
    ("plain", "every 30 minutes between foo", 26, "a weekday"),
    ("plain", "every 30 minutes between 9:00 at 10:00", 31, "expected and"),
    ("plain", "every 30 minutes between 22:00 and 02:00 on mon", 18, "midnight"),
    ("plain", "every 26 hours on mon", None, "less than a day"),
    ("plain", "every month at 9:00", 13, "expected on"),
    ("plain", "every month on the 32nd", 20, "1-31"),
    ("plain", "every week at 9", 12, "expected on"),
    ("plain", "every year on 31 april", 15, "never fires"),
    ("plain", "every year on 5 foo", 17, "a month"),
    ("plain", "every 9999999999 minutes", 7, "'9999999999'"),
    ("plain", "every 0.5s", None, "less than a second"),
    ("foo", "x", None, "cron or every or rrule or plain"),
]


@pytest.mark.parametrize(("kind", "text", "position", "part"), REFUSED, ids=[f"{k} {t}"[:60] for k, t, _, _ in REFUSED])
def test_a_wrong_expression_is_told_what_where_and_what_else(kind: str, text: str, position: int | None, part: str):
    with pytest.raises(InvalidScheduleError) as refused:
        parse_recurrence(kind, text, "UTC", anchor=ANCHOR)
    assert part in str(refused.value)
    assert refused.value.position == position
    assert refused.value.remedy
    assert "\n" not in str(refused.value)


NEVER = [
    ("rrule", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"),
    ("rrule", "FREQ=DAILY;UNTIL=20200101"),
    ("rrule", "FREQ=DAILY;COUNT=1"),
    ("rrule", "FREQ=DAILY;INTERVAL=7;BYDAY=TU"),
    ("rrule", "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3"),
    ("rrule", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"),
    ("rrule", "FREQ=WEEKLY;BYDAY=MO;BYSETPOS=10"),
    ("rrule", "FREQ=MONTHLY;INTERVAL=12;BYMONTH=3"),
    ("rrule", "FREQ=YEARLY;BYWEEKNO=10;BYMONTH=12"),
    ("cron", "0 0 31W 2 *"),
]


@pytest.mark.parametrize(("kind", "text"), NEVER, ids=[text for _, text in NEVER])
def test_what_never_fires_is_refused_in_a_tenth_of_a_second(kind: str, text: str):
    begin = process_time()
    recurrence = parse_recurrence(kind, text, "Europe/Berlin", anchor=ANCHOR)
    with pytest.raises(InvalidScheduleError, match="never fires"):
        check_fires(recurrence, ANCHOR)
    assert process_time() - begin < 0.1


@pytest.mark.parametrize("kind", ["cron", "every", "rrule", "plain"])
def test_a_long_wrong_expression_does_not_make_a_long_error(kind: str):
    for text in ("x" * 1_000, "every " + "x" * 990, "0 9 * * " + "1," * 400 + "9", "FREQ=" + "X" * 900):
        with pytest.raises(InvalidScheduleError) as refused:
            parse_recurrence(kind, text, "UTC")
        assert len(str(refused.value)) < 700


ZONES = {
    "Europe/Berln": "Europe/Berlin",
    "berlin": "Europe/Berlin",
    "europe/berlin": "Europe/Berlin",
    "New York": "America/New_York",
    "Mars/Phobos": "an IANA name",
    "America": "America/",
    "../etc/passwd": "an IANA name",
    "a\0b": "an IANA name",
    "": "an IANA name",
    "localtime": "an IANA name",
    "right/Europe/Berlin": "Europe/Berlin",
    "x" * 5_000: "an IANA name",
}


@pytest.mark.parametrize("name", ZONES, ids=[ascii(name)[:30] for name in ZONES])
def test_an_unknown_zone_is_refused_with_near_matches(name: str):
    for read in (load_zone, lambda zone: parse_recurrence("cron", "0 9 * * *", zone)):
        with pytest.raises(InvalidScheduleError) as refused:
            read(name)
        assert ZONES[name] in str(refused.value)
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("kind", "text"),
    [("cron", "0 0 15W,L * MON#1"), ("every", "15m"), ("rrule", "FREQ=DAILY;COUNT=9"), ("plain", "every day at 9")],
)
def test_a_recurrence_is_a_value(kind: str, text: str):
    recurrence = parse_recurrence(kind, text, "Europe/Berlin", anchor=ANCHOR)
    copied = pickle.loads(pickle.dumps(recurrence))
    assert copied == recurrence == parse_recurrence(kind, text, "Europe/Berlin", anchor=ANCHOR)
    assert hash(copied) == hash(recurrence)
    assert copied.after(ANCHOR) == recurrence.after(ANCHOR)
    assert (recurrence.kind, recurrence.text, recurrence.zone) == (kind, text, "Europe/Berlin")
    with pytest.raises(AttributeError):
        recurrence.text = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="no offset"):
        recurrence.after(datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_calendar_ends_without_an_error():
    late = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
    for kind, text in (("cron", "0 0 * * *"), ("every", "1d"), ("rrule", "FREQ=DAILY"), ("plain", "every day at 0:00")):
        assert parse_recurrence(kind, text, "Asia/Tokyo").after(late) is None
    assert parse_recurrence("rrule", "FREQ=WEEKLY;INTERVAL=100000", "UTC").after(late) is None
    assert parse_recurrence("rrule", "FREQ=YEARLY;INTERVAL=100000", "UTC").after(late) is None


def test_a_day_that_a_zone_skipped_counts_as_a_gap():
    """Samoa had no 30 December 2011: the fixed-time job of that day runs as the next day begins."""
    daily = parse_recurrence("cron", "0 9 * * *", "Pacific/Apia")
    found = next_times(daily, datetime(2011, 12, 29, 20, 0, tzinfo=UTC), 2)
    assert [each.isoformat() for each in found] == ["2011-12-30T10:00:00+00:00", "2011-12-30T19:00:00+00:00"]


def test_several_times_in_one_gap_are_one_run():
    found = local("cron", "0,15,30 2 * * *", 2, after=datetime(2026, 3, 29, 0, 0, tzinfo=UTC))
    assert found == ["Sun 03-29 03:00", "Mon 03-30 02:00"]


def test_what_steps_in_gaps_only_never_fires():
    """In New York the clocks go forward on the second Sunday of March at 02:00, every year."""
    begin = process_time()
    with pytest.raises(InvalidScheduleError, match="never fires"):
        check_fires(parse_recurrence("cron", "*/15 2 * 3 SUN#2", "America/New_York"), ANCHOR)
    assert process_time() - begin < 0.1


def test_a_field_that_holds_all_its_values_steps_however_it_is_written():
    fold = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    for text in ("0 * * * *", "0 0-23 * * *", "0 0-11,12-23 * * *"):
        assert local("cron", text, 3, after=fold - timedelta(minutes=1)) == ["Sun 10-25 02:00"] * 2 + [
            "Sun 10-25 03:00"
        ]
