"""How to reach NATS, checked before anything starts. No secret is ever part of a repr, a message or a log (BR-220)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from jm_core.errors import InvalidSettingError, check_finite
from jm_nats.subjects import INBOX_PREFIX, parse_inbox_prefix

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_PORT: Final = 4222
SCHEMES: Final = ("nats", "tls")
ENV_FIELDS: Final = {
    "JM_NATS_USER": "user",
    "JM_NATS_PASSWORD": "password",
    "JM_NATS_TOKEN": "token",
    "JM_NATS_CREDS": "creds_file",
    "JM_NATS_NKEY": "nkey_seed_file",
    "JM_NATS_TLS_CA": "tls_ca_file",
    "JM_NATS_TLS_CERT": "tls_cert_file",
    "JM_NATS_TLS_KEY": "tls_key_file",
    "JM_NATS_TLS_HOSTNAME": "tls_hostname",
    "JM_NATS_INBOX_PREFIX": "inbox_prefix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """One agent's connection settings.

    Credentials inside a server's URL (``nats://user:p%40ss@host``) are taken out of it at once, percent-decoded, into
    ``user`` and ``password``, or into ``token`` when there is no colon; ``servers`` is safe to show.

    Args:
        servers: ``nats://host:port`` or ``tls://host:port``; scheme and port may be left out.
        creds_file: path of a ``.creds`` file (JWT and seed), read again at every connect.
        nkey_seed_file: path of a file with one NKEY seed, read again at every connect.
        tls_ca_file: PEM; naming it, or a certificate, or a ``tls://`` server makes TLS a must: a server that does not
            offer it gets no credentials.
        tls_hostname: the name in the server's certificate, where it differs from the host.
        tls_handshake_first: for servers with ``handshake_first``.
        inbox_prefix: what the subjects begin with on which answers to us arrive; one per role, where the server's
            permissions keep roles from reading each other's answers.
        connect_timeout_s: for the first connection as a whole; later ones are tried for ever.
        reconnect_wait_max_s: attempts are 0.1 s apart at first, this much at most, always with jitter (BR-153).
        ping_interval_s: a server that answers nothing is given up after three of these.
        pending_bytes_max: what may wait in memory for the socket.

    Raises:
        InvalidSettingError: contradicting settings, or a server that cannot be read; without quoting a secret.
        InvalidNameError: an inbox prefix that is none.
    """

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: str | None = None
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    inbox_prefix: str = INBOX_PREFIX
    connect_timeout_s: float = 5.0
    reconnect_wait_max_s: float = 8.0
    ping_interval_s: int = 10
    pending_bytes_max: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        check_finite({name: getattr(self, name) for name in self.__dataclass_fields__})
        found = [_parse_server(number, text) for number, text in enumerate(self.servers, 1)]
        if not found:
            raise InvalidSettingError(f"no NATS server given; set JM_NATS_URL, for example to {DEFAULT_SERVER}")
        object.__setattr__(self, "servers", tuple(server for server, _ in found))
        self._adopt([credentials for _, credentials in found if credentials])
        self._check_credentials()
        self._check_tls()
        parse_inbox_prefix(self.inbox_prefix)
        for name in ("connect_timeout_s", "reconnect_wait_max_s", "ping_interval_s", "pending_bytes_max"):
            if getattr(self, name) <= 0:
                raise InvalidSettingError(f"{name} is {getattr(self, name)}; it must be greater than 0")

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Settings from ``JM_NATS_URL`` (servers separated by commas) and the variables of ``ENV_FIELDS``."""
        given = {name: env[variable] for variable, name in ENV_FIELDS.items() if env.get(variable)}
        return cls(servers=parse_servers(env.get("JM_NATS_URL") or DEFAULT_SERVER), **given)  # type: ignore[arg-type]

    @property
    def redacted_servers(self) -> str:
        """The servers for messages and logs."""
        return ", ".join(self.servers)

    @property
    def who(self) -> str:
        """Who we are to the server, for messages; no secret."""
        kinds = {"a token": self.token, "the user of a creds file": self.creds_file, "an nkey": self.nkey_seed_file}
        named = f"user '{self.user}'" if self.user else None
        return named or next((kind for kind, given in kinds.items() if given), "a user without credentials")

    @property
    def requires_tls(self) -> bool:
        named = self.tls_ca_file or self.tls_cert_file or self.tls_hostname or self.tls_handshake_first
        return bool(named) or any(server.startswith("tls:") for server in self.servers)

    def _adopt(self, from_urls: list[tuple[str, str | None]]) -> None:
        """Make credentials found in URLs ours."""
        if not from_urls:
            return
        if len(set(from_urls)) > 1:
            raise InvalidSettingError("the NATS servers carry different credentials in their URLs; one set serves all")
        if self.user or self.password or self.token:
            raise InvalidSettingError("NATS credentials are given both in a server's URL and apart; keep one of them")
        user, password = from_urls[0]
        if password is None:
            object.__setattr__(self, "token", user)
        else:
            object.__setattr__(self, "user", user)
            object.__setattr__(self, "password", password)

    def _check_credentials(self) -> None:
        if (self.user is None) != (self.password is None):
            missing = "JM_NATS_PASSWORD" if self.password is None else "JM_NATS_USER"
            raise InvalidSettingError(f"a NATS user needs a password and the other way round; set {missing}")
        kinds = {
            "user and password": self.user,
            "token": self.token,
            "creds file": self.creds_file,
            "nkey seed": self.nkey_seed_file,
        }
        given = [kind for kind, value in kinds.items() if value is not None]
        if len(given) > 1:
            raise InvalidSettingError(f"several kinds of NATS credentials are given ({', '.join(given)}); keep one")

    def _check_tls(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            missing = "JM_NATS_TLS_KEY" if self.tls_key_file is None else "JM_NATS_TLS_CERT"
            raise InvalidSettingError(f"a NATS client certificate needs its key and the other way round; set {missing}")


def parse_servers(text: str) -> tuple[str, ...]:
    """Servers separated by commas; a comma inside a password is written ``%2C``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_server(number: int, text: str) -> tuple[str, tuple[str, str | None] | None]:
    """``scheme://host:port`` and the credentials found in it.

    Split by hand at the last ``@``: ``urlsplit`` would end the host at the first ``/`` of an unescaped password, and
    put the rest of it into its error message. No message here quotes the text, for the same reason.
    """
    scheme, _, rest = text.strip().rpartition("://")
    userinfo, at, address = rest.rpartition("@")
    host, port = _parse_address(number, address.removesuffix("/"))
    if (scheme or "nats") not in SCHEMES:
        raise _bad_server(number, f"its scheme is none of {', '.join(SCHEMES)}")
    server = f"{scheme or 'nats'}://{f'[{host}]' if ':' in host else host}:{port}"
    return server, _parse_userinfo(userinfo) if at else None


def _parse_address(number: int, address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        raise _bad_server(number, "its host or port cannot be read") from None
    if not host or parts.path or parts.query or parts.fragment or any(c.isspace() for c in host):
        raise _bad_server(number, "it is not of the form nats://host:port")
    return host, port


def _parse_userinfo(userinfo: str) -> tuple[str, str | None]:
    user, colon, password = userinfo.partition(":")
    return unquote(user), unquote(password) if colon else None


def _bad_server(number: int, problem: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"NATS server number {number}: {problem}; write it like {DEFAULT_SERVER}, "
        "and ',', '@', '/' or ':' inside a password as %2C, %40, %2F, %3A"
    )
