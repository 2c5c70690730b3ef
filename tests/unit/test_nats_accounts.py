"""deploy/nats/accounts.conf held against the page that says what a client may, and against itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CONF: Final = "\n".join(
    line.partition("#")[0] for line in (ROOT / "deploy" / "nats" / "accounts.conf").read_text().splitlines()
)
PAGE: Final = (ROOT / "docs" / "wire-format.md").read_text()
ACCOUNT_OF: Final = {"submitter": "PROD_SUBMITTERS", "client": "PROD_APPS"}
ROW: Final = re.compile(r"^\| (publish|subscribe) \| `([^`]+)` \| (yes|) ?\| (yes|) ?\|", re.MULTILINE)


def block(text: str, start: str, brackets: str = "{}") -> str:
    """From the first bracket after ``start`` to the one that closes it."""
    begin = text.index(brackets[0], text.index(start) + len(start) - 1)
    depth = 0
    for place, character in enumerate(text[begin:], begin):
        depth += (character == brackets[0]) - (character == brackets[1])
        if not depth:
            return text[begin : place + 1]
    raise AssertionError(start)


def quoted(text: str) -> set[str]:
    return set(re.findall(r'"([^"]+)"', text))


def permitted(user: str) -> dict[str, set[str]]:
    permissions = block(CONF[CONF.index(f"user: {user}") :], "permissions {")
    return {verb: quoted(block(permissions, f"{verb}: [", "[]")) for verb in ("publish", "subscribe")}


def on_the_page(user: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"publish": set(), "subscribe": set()}
    for verb, subject, of_submitter, of_client in ROW.findall(PAGE):
        if {"submitter": of_submitter, "client": of_client}[user]:
            found[verb].add(subject.replace("<cluster>", "prod").replace("<user>", user))
    return found


def exported(kind: str, account: str) -> set[str]:
    exports = block(block(CONF, "    PROD {"), "exports: [", "[]")
    entries = re.findall(rf'{kind}: "([^"]+)",?\s+accounts: \[([^\]]+)\]', exports)
    return {subject for subject, accounts in entries if account in re.split(r",\s*", accounts)}


def imported(kind: str, account: str) -> set[str]:
    imports = block(block(CONF, f"    {account} {{"), "imports: [", "[]")
    return set(re.findall(rf'{kind}: {{ account: PROD, subject: "([^"]+)" }}', imports))


@pytest.mark.parametrize("user", ACCOUNT_OF)
def test_the_page_says_what_the_file_allows(user):
    assert on_the_page(user) == permitted(user)


@pytest.mark.parametrize(("user", "account"), ACCOUNT_OF.items(), ids=ACCOUNT_OF)
def test_what_is_allowed_is_imported_and_what_is_imported_is_exported(user, account):
    allowed = permitted(user)
    assert exported("service", account) == imported("service", account) == allowed["publish"]
    assert exported("stream", account) == imported("stream", account) == allowed["subscribe"]


def test_the_coordinator_may_answer_everybody():
    inboxes = {subject for user in ACCOUNT_OF for subject in permitted(user)["subscribe"] if "_INBOX" in subject}
    coordinator = block(CONF[CONF.index("user: coordinator") :], "permissions {")
    assert inboxes | {"_R_.>"} <= quoted(block(coordinator, "allow: [", "[]"))
