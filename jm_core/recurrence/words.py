"""The words of a plain-language expression, one after the other, and what could have stood where it goes wrong."""

import re
from typing import Final

from jm_core.errors import InvalidScheduleError

EXAMPLE: Final = "'every weekday at 9:00' or 'every 30 minutes between 09:00 and 18:00' for example"
WORD: Final = re.compile(r",|[^\s,]+")
CLOCK: Final = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))?(am|pm)?")
DURATION: Final = re.compile(r"(?:[0-9]+(?:[.][0-9]+)?[wdhms])+")
ORDINAL: Final = re.compile(r"([0-9]{1,2})(?:st|nd|rd|th)?")
NAMED_TIMES: Final = {"midnight": 0, "noon": 43_200}


class Words:
    """A cursor; lower case, but for the name of a zone."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [(found.group(), found.start() + 1) for found in WORD.finditer(text)]
        self._at = 0
        self._tried: list[str] = []  # what could have stood at this word
        self.last = ""  # the word taken last, in lower case

    @property
    def position(self) -> int:
        """Of the word that is next, 1-based."""
        return self._words[self._at][1] if self._at < len(self._words) else len(self._text.rstrip()) + 1

    def accept(self, *words: str, shown: tuple[str, ...] | None = None) -> str:
        """The next word when it is one of these, else an empty one; ``shown`` names them in an error."""
        if self._next() in words:
            return self.take().lower()
        self._tried += [word for word in (words if shown is None else shown) if word not in self._tried]
        return ""

    def need(self, *words: str, shown: tuple[str, ...] | None = None) -> str:
        """One of these words.

        Raises:
            InvalidScheduleError.
        """
        found = self.accept(*words, shown=shown)
        if not found:
            raise self.unexpected()
        return found

    def take(self) -> str:
        word = self._words[self._at][0]
        self._at += 1
        self._tried = []
        self.last = word.lower()
        return word

    def at_duration(self) -> bool:
        """Whether ``15m`` or the like is next."""
        return DURATION.fullmatch(self._next()) is not None

    def at_time(self) -> bool:
        return CLOCK.fullmatch(self._next()) is not None or self._next() in NAMED_TIMES

    def number(self) -> int | None:
        if re.fullmatch("[0-9]{1,6}", self._next()):
            return int(self.take())
        self._tried.append("a number")
        return None

    def day_number(self) -> int:
        """The number of a day, ``15`` or ``15th``.

        Raises:
            InvalidScheduleError.
        """
        found = ORDINAL.fullmatch(self._next())
        if found is None or not 1 <= int(found[1]) <= 31:
            raise self.unexpected("a day 1-31")
        self.take()
        return int(found[1])

    def time(self) -> int:
        """A time of the day, in seconds: ``9``, ``09:00``, ``09:00:30``, ``9am``, ``9:30 pm``, ``noon``, ``midnight``.

        Raises:
            InvalidScheduleError.
        """
        word = self._next()
        if word in NAMED_TIMES:
            self.take()
            return NAMED_TIMES[word]
        found = CLOCK.fullmatch(word)
        if found is None:
            raise self.unexpected("a time 09:00")
        hour, minute, second = int(found[1]), int(found[2] or 0), int(found[3] or 0)
        half = found[4] or (self._next(1) if self._next(1) in ("am", "pm") else "")
        if minute > 59 or second > 59 or (not 1 <= hour <= 12 if half else hour > 23):
            raise self.unexpected("a time 00:00-23:59")
        self.take()
        if half and not found[4]:
            self.take()
        if half:
            hour = hour % 12 + 12 * (half == "pm")
        return hour * 3_600 + minute * 60 + second

    def zone_name(self) -> str:
        if self._at == len(self._words):
            raise self.unexpected("a zone Europe/Berlin")
        return self.take()

    def end(self) -> None:
        """Nothing more.

        Raises:
            InvalidScheduleError.
        """
        if self._at < len(self._words):
            raise self.unexpected("the end")

    def unexpected(self, *expected: str) -> InvalidScheduleError:
        tried = tuple(dict.fromkeys([*self._tried, *expected]))
        found = f"{self._words[self._at][0]!r} cannot stand" if self._at < len(self._words) else "it ends"
        return InvalidScheduleError("plain", found, self.position, tried, remedy=EXAMPLE)

    def _next(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._words[at][0].lower() if at < len(self._words) else ""
