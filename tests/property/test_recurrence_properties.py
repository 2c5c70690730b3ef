"""What must hold of every expression, zone and instant; and rules against dateutil's own generator."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from jm_core.recurrence import KINDS, InvalidScheduleError, Recurrence, guess_kind, next_times, parse_recurrence
from jm_core.recurrence.rule import STEPPING

ANCHOR = datetime(2026, 1, 5, 10, 20, 30, tzinfo=UTC)  # a Monday
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",  # half an hour
    "America/Nuuk",
    "Africa/Casablanca",  # four changes a year
    "Antarctica/Troll",  # two hours
    "Asia/Kathmandu",
    "Pacific/Apia",
]
zones = st.sampled_from(ZONES)
instants = st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    steps = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, high - low)).map(lambda s: f"{s[0]}/{s[1]}")
    item = st.one_of(number.map(str), ranges, steps)
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


day_of_month = st.one_of(field(1, 31), st.sampled_from(["L", "LW", "15W", "1W,31W", "L,13"]))
day_of_week = st.one_of(field(0, 7), st.sampled_from(["MON-FRI", "MON#1", "5L", "sat-sun"]))
minutely = st.tuples(field(0, 59), field(0, 23), day_of_month, field(1, 12), day_of_week).map(" ".join)
secondly = st.tuples(field(0, 59), minutely).map(" ".join)
crons = st.one_of(minutely, secondly)

clock = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda at: f"{at[0]:02}:{at[1]:02}")
days = st.sampled_from(
    ["day", "weekday", "weekend", "monday and fri", "2 days", "3 weeks on tue", "month on the last day"]
)
plains = st.one_of(
    st.tuples(days, clock).map(lambda parts: f"every {parts[0]} at {parts[1]}"),
    st.tuples(st.integers(1, 300), clock, clock).map(lambda p: f"every {p[0]} minutes between {p[1]} and {p[2]}"),
)

FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(FREQUENCIES))
    parts = [f"FREQ={frequency}", f"INTERVAL={draw(st.integers(1, 5))}"]

    def some(name: str, low: int, high: int, *, minus: bool = False) -> None:
        number = st.integers(low, high)
        signed = st.tuples(number, st.sampled_from([1, -1])).map(lambda n: n[0] * n[1]) if minus else number
        if draw(st.booleans()):
            parts.append(f"{name}={','.join(map(str, draw(st.lists(signed, min_size=1, max_size=3))))}")

    if draw(st.booleans()):
        nth = st.sampled_from(["", "", "1", "-1", "2"] if frequency in ("MONTHLY", "YEARLY") else [""])
        weekday = st.tuples(nth, st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])).map("".join)
        parts.append(f"BYDAY={','.join(draw(st.lists(weekday, min_size=1, max_size=3)))}")
    some("BYMONTH", 1, 12)
    if frequency != "WEEKLY":
        some("BYMONTHDAY", 1, 28, minus=True)
    some("BYHOUR", 0, 23)
    some("BYMINUTE", 0, 59)
    some("BYSECOND", 0, 59)
    if frequency in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY") and any("BY" in part for part in parts):
        some("BYSETPOS", 1, 3, minus=True)
    if draw(st.booleans()):
        parts.append(f"WKST={draw(st.sampled_from(['MO', 'SU']))}")
    return ";".join(parts)


texts = st.one_of(
    crons.map(lambda text: ("cron", text)),
    st.integers(1, 10_000_000).map(lambda seconds: ("every", str(seconds))),
    rules().map(lambda text: ("rrule", text)),
    plains.map(lambda text: ("plain", text)),
)


def read(kind: str, text: str, zone: str) -> Recurrence | None:
    """None for what can never be, as "0 0 31 2 *": the generators make some of it."""
    try:
        return parse_recurrence(kind, text, zone, anchor=ANCHOR)
    except InvalidScheduleError as error:
        if "never fires" in str(error):
            return None
        raise


@given(texts, zones, instants)
def test_each_occurrence_comes_after_the_one_before_and_is_in_utc(given_text, zone, after):
    recurrence = read(*given_text, zone)
    if recurrence is None:
        return
    found = next_times(recurrence, after, 5)
    assert all(earlier < later for earlier, later in pairwise([after, *found]))
    assert all(at.tzinfo is UTC for at in found)


@given(texts, zones, instants, st.floats(0, 1, exclude_max=True))
def test_whoever_asks_between_two_occurrences_is_told_the_same(given_text, zone, after, part):
    recurrence = read(*given_text, zone)
    following = recurrence.after(after) if recurrence else None
    if recurrence is None or following is None:
        return
    between = min(after + (following - after) * part, following - timedelta(microseconds=1))
    assert recurrence.after(between) == following
    assert recurrence.after(following - timedelta(microseconds=1)) == following
    assert recurrence.after(after.astimezone(ZoneInfo("Asia/Tokyo"))) == following


@given(texts, zones, instants)
def test_a_wall_clock_shows_the_time_of_every_occurrence(given_text, zone, after):
    """Never a local time that does not exist: what is returned survives the way there and back."""
    recurrence = read(*given_text, zone)
    for at in next_times(recurrence, after, 3) if recurrence else []:
        shown = at.astimezone(ZoneInfo(zone))
        assert shown.replace(tzinfo=None).replace(tzinfo=ZoneInfo(zone), fold=shown.fold).astimezone(UTC) == at


@given(rules())
def test_a_rule_has_the_occurrences_that_dateutil_finds(text):
    """In UTC, where no clock changes; dateutil is asked for rules that have some: else it searches to the year 9999.

    Of WEEKLY with BYSETPOS it counts the first week from DTSTART on, which is why ``ANCHOR`` is a Monday at WKST=MO.
    """
    if "WEEKLY" in text and "BYSETPOS" in text:
        text = text.replace("WKST=SU", "WKST=MO")
    recurrence = parse_recurrence("rrule", text, "UTC", anchor=ANCHOR)
    before = ANCHOR - timedelta(seconds=1)
    found = next_times(recurrence, before, 6)
    if text.partition(";")[0].removeprefix("FREQ=") in STEPPING:  # it would take dateutil seconds to get far
        found = [at for at in found if at < ANCHOR + timedelta(days=30)]
    if found:
        expected = rrulestr(text, dtstart=ANCHOR)
        assert found == list(islice(expected, len(found)))


@given(rules(), st.integers(0, 3_000))
def test_a_search_that_starts_late_finds_what_one_from_the_start_does(text, days_later):
    recurrence = parse_recurrence("rrule", text, "UTC", anchor=ANCHOR)
    after = ANCHOR + timedelta(days=days_later)
    following = recurrence.after(after)
    frequency = text.removeprefix("FREQ=").partition(";")[0]
    if following is None or frequency in STEPPING:  # dateutil would count to there one by one
        return
    assert following == rrulestr(text, dtstart=ANCHOR).after(after)


SENTENCE = "every day on at in and , between mon weekday 9:00 25:00 2 month last first"
OTHERS = "FREQ=DAILY BYDAY=MO ; COUNT=3 UNTIL=2030 DTSTART:20300101 */5 1-5 L 15W MON#2 ? @daily 1h 90s"
words = st.sampled_from(f"{SENTENCE} {OTHERS}".split())
nonsense = st.one_of(
    st.text(max_size=40), st.lists(words, max_size=8).map(" ".join), st.lists(words, max_size=8).map("".join)
)


@given(st.sampled_from(KINDS), nonsense, st.one_of(zones, st.text(max_size=20)))
def test_nonsense_is_refused_by_our_own_error_or_is_none(kind, text, zone):
    assert guess_kind(text) in KINDS
    try:
        recurrence = parse_recurrence(kind, text, zone, anchor=ANCHOR)
    except InvalidScheduleError as error:
        refused = error
    else:
        assert isinstance(recurrence.describe(), str)
        recurrence.after(ANCHOR)
        return
    assert refused.remedy
    assert refused.position is None or 1 <= refused.position <= len(text) + 1
    assert str(refused).isprintable()
