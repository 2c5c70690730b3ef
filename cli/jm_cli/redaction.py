"""Passwords and tokens never reach a terminal, a log or a traceback (BR-220), whoever wrote the text.

Settings know their secrets and keep them out of messages; this is the second lock. It knows the values that came in by
environment and command line, in every spelling they may take, and removes them from whatever is about to be printed.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, unquote

HIDDEN: Final = "***"
SECRET_VARIABLES: Final = ("JM_NATS_PASSWORD", "JM_NATS_TOKEN", "PGPASSWORD")
URL_VARIABLES: Final = ("JM_NATS_URL", "JM_POSTGRES_DSN")
# Shorter ones would black out ordinary words; they keep nothing secret anyway.
SECRET_CHARS_MIN: Final = 4

_secrets: set[str] = set()
# Up to the last @, because an unescaped password may hold one itself; never beyond a blank or a quote.
_userinfo = re.compile(r"(?<=://)[^\s'\"<>]*@")
_password_parameter = re.compile(r"(?i)\b((?:ssl)?password=)[^\s&'\"]+")


def learn(*secrets: str | None) -> None:
    """Remember values that must not be shown."""
    for secret in secrets:
        if secret:
            _secrets.update(form for form in _spellings(secret) if len(form) >= SECRET_CHARS_MIN)


def learn_url(url: str | None) -> None:
    """Remember the credentials inside a URL or DSN, or inside several separated by commas."""
    for part in {url or "", *(url or "").split(",")}:  # a comma may stand between servers or inside a password
        for scheme, userinfo in re.findall(r"(\w+)://([^\s]*)@", part):
            user, colon, password = userinfo.partition(":")
            if colon or not scheme.startswith("postgres"):  # where a lone name is a user; to NATS it is a token
                learn(password if colon else user)
    for password in re.findall(r"(?i)\b(?:ssl)?password=([^&\s]+)", url or ""):
        learn(password)


def learn_headers(headers: str | None) -> None:
    """Remember the values of ``Authorization=Bearer%20abc,x-key=def``, as OTEL_EXPORTER_OTLP_HEADERS has them."""
    for pair in (headers or "").split(","):
        value = pair.partition("=")[2].strip()
        learn(value, unquote(value), *unquote(value).split())


def learn_environment() -> None:
    """Remember what the variables that hold secrets hold now."""
    learn(*(os.environ.get(name) for name in SECRET_VARIABLES))
    for name in URL_VARIABLES:
        learn_url(os.environ.get(name))


def redact(text: str) -> str:
    """``text`` without any secret known, and without credentials of any URL in it."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _password_parameter.sub(rf"\1{HIDDEN}", _userinfo.sub(f"{HIDDEN}@", text))


def _spellings(secret: str) -> Iterator[str]:
    """As given, percent-encoded more and less, decoded, and as Python and JSON quote it."""
    for form in {secret, unquote(secret)}:
        yield form
        yield quote(form, safe="")
        yield quote(form)
        yield repr(form)[1:-1]
        yield json.dumps(form)[1:-1]
