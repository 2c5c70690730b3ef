"""What the server does not allow is told to whom it concerns, and to nobody else."""

from __future__ import annotations

import asyncio

import pytest
from nats import errors

from jm_nats.denials import Denial, Denials, parse_denial
from jm_nats.errors import AgentDeniedError


def refusal(verb: str, subject: str) -> errors.Error:
    """As nats.py hands it on."""
    return errors.Error(f'nats: permissions violation for {verb} to "{subject.lower()}"')


@pytest.fixture
def denials():
    return Denials(lambda: "nats://n:4222", "user 'u'", "_INBOX_u")


@pytest.mark.parametrize(
    ("text", "denial"),
    [
        ('Permissions Violation for Publish to "jm.A.submit"', Denial("publish", "jm.a.submit")),
        ('permissions violation for subscription to "_inbox.x.*"', Denial("subscribe", "_inbox.x.*")),
        ('permissions violation for subscription to "a" using queue "q"', Denial("subscribe", "a")),
        ('permissions violation for publish with reply of "_inbox.x"', Denial("publish", "_inbox.x")),
        ("authorization violation", None),
        ("stale connection", None),
    ],
)
def test_the_servers_words_are_read(text, denial):
    assert parse_denial(text) == denial


async def test_who_waits_on_the_subject_is_told_and_nobody_else(denials):
    with denials.watched("jm.A.submit") as mine, denials.watched("jm.B.submit") as other:
        assert denials.heard(refusal("publish", "jm.A.submit"))
        with pytest.raises(AgentDeniedError, match=r"user 'u' may not publish to 'jm\.A\.submit'; use a user") as told:
            await mine
        assert (told.value.verb, told.value.subject, told.value.is_own_inbox) == ("publish", "jm.A.submit", False)
        assert not other.done()


async def test_without_its_inbox_nothing_is_answered_until_the_next_connection(denials):
    with denials.watched("a") as waiting:
        denials.heard(refusal("subscription", "_INBOX_u.abc.*"))
        with pytest.raises(AgentDeniedError, match="JM_NATS_INBOX_PREFIX"):
            await waiting
    with denials.watched("b") as later:
        assert later.done()
    denials.forget()
    with denials.watched("b") as later:
        assert not later.done()


async def test_another_inbox_is_a_subject_like_any_other(denials):
    with denials.watched("a") as waiting:
        denials.heard(refusal("subscription", "_INBOX_union.abc.*"))
        assert not waiting.done()


async def test_other_errors_are_not_swallowed(denials):
    assert not denials.heard(errors.Error("nats: maximum connections exceeded"))


async def test_a_listener_hears_until_it_has_enough(denials):
    heard: list[str | None] = []
    enough = denials.listen(lambda _, subject: heard.append(subject))
    denials.heard(refusal("publish", "A"))
    denials.heard(refusal("subscription", "_INBOX_u.x"))
    enough()
    denials.heard(refusal("publish", "A"))
    assert heard == ["a", None]


async def test_the_log_says_it_once(denials, caplog):
    for _ in range(3):
        denials.heard(refusal("publish", "A"))
    await asyncio.sleep(0)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
