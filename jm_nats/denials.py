"""What the server does not let this user do: heard from its ``-ERR``, which names the subject and no request.

NATS answers a publish that is not allowed with an error on the connection and nothing on the reply subject, so whoever
waits for the answer would wait for its whole time and then hear "no answer". Here each waiter says which subject it has
asked on, and is told.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from jm_nats.errors import AgentDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

# nats.py hands on the server's words in lower case (`Permissions Violation for Publish to "jm.a.submit"`).
_violation = re.compile(
    r'permissions violation for (?P<verb>publish|subscription)(?: with reply of| to) "(?P<subject>[^"]*)"'
).search
SAID_MAX: Final = 1000  # subjects told of in the log; a process that meets more of them has told enough


class Denial(msgspec.Struct, frozen=True):
    """``subject`` is in lower case."""

    verb: str  # "publish" or "subscribe"
    subject: str


def parse_denial(text: str) -> Denial | None:
    """What the server refuses, or None when ``text`` is some other error."""
    found = _violation(text.lower())
    if found is None:
        return None
    return Denial("publish" if found["verb"] == "publish" else "subscribe", found["subject"])


class Denials:
    """Of one connection: who waits on which subject, and what was refused so far.

    Args:
        user: who we are, for messages.
        inbox_prefix: that of the connection. Without its inbox nothing is ever answered, so a refusal of that one
            ends every wait, also later ones, until ``forget``.
    """

    def __init__(self, server: Callable[[], str], user: str, inbox_prefix: str) -> None:
        self._server = server
        self._user = user
        self._inbox = f"{inbox_prefix.lower()}."
        self._deaf: AgentDeniedError | None = None
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._listeners: list[Callable[[AgentDeniedError, str | None], None]] = []
        self._said: set[Denial] = set()

    def forget(self) -> None:
        """The connection is a new one; what is still refused will be said again."""
        self._deaf = None

    def listen(self, callback: Callable[[AgentDeniedError, str | None], None]) -> Callable[[], None]:
        """Call it with each refusal: the error, and the subject in lower case, or None where all are concerned.

        Returns what undoes this.
        """
        self._listeners.append(callback)

        def undo() -> None:
            with suppress(ValueError):
                self._listeners.remove(callback)

        return undo

    @contextmanager
    def watched(self, subject: str) -> Iterator[asyncio.Future[None]]:
        """A future that fails when publishing to ``subject`` is refused, or no answer can be heard; it never ends well.

        A refusal that belongs to an earlier publish to the same subject counts as well: it would be refused again.
        """
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[refused] = subject
        if self._deaf is not None:
            refused.set_exception(self._deaf)
        try:
            yield refused
        finally:
            del self._waiting[refused]
            refused.cancel()
            if not refused.cancelled():
                refused.exception()  # seen, even where the answer came first

    def heard(self, problem: Exception) -> bool:
        """Tell whom it concerns. False when it is no refusal of a subject."""
        denial = parse_denial(str(problem))
        if denial is None:
            return False
        deaf = denial.verb == "subscribe" and denial.subject.startswith(self._inbox)
        waiting = {
            wait: subject for wait, subject in self._waiting.items() if deaf or subject.lower() == denial.subject
        }
        spelled = denial.subject if deaf else next(iter(waiting.values()), denial.subject)
        error = AgentDeniedError(self._server(), self._user, denial.verb, spelled, is_own_inbox=deaf)
        if deaf:
            self._deaf = error
        self._say(denial, error)
        for wait in waiting:
            if not wait.done():
                wait.set_exception(error)
        for listener in list(self._listeners):
            listener(error, None if deaf else denial.subject)
        return True

    def _say(self, denial: Denial, error: AgentDeniedError) -> None:
        facts = {"problem": str(error)}
        if denial in self._said or len(self._said) >= SAID_MAX:
            log.debug("not allowed by NATS", extra=facts)
            return
        self._said.add(denial)
        log.warning("not allowed by NATS", extra=facts)
