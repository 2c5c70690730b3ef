"""Every setting of every command, once: flag, environment variable, default, help. docs/configuration.md is printed
from here (``jm_cli.docs``).

Those of one role, worker or coordinator, are in ``role_settings``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from jm_cli import local_env
from jm_cli.exits import UsageError
from jm_cli.redaction import learn, learn_url
from jm_core.model import PRIORITY_BY_LABEL, Priority

if TYPE_CHECKING:
    from jm_nats.config import NatsConfig

DEFAULT_CLUSTER: Final = "default"
DEFAULT_NATS_URL: Final = "nats://127.0.0.1:4222"
DEFAULT_SCHEMA: Final = "jobmaster"
PRIORITY_NAMES: Final = "|".join(PRIORITY_BY_LABEL)
_BETTER_BY_VARIABLE: Final = "Better by the variable: other users can read a command line."


def setting(flag: str, env: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, envvar=env, help=text, show_envvar=True, **more)


def secret(flag: str, env: str, text: str) -> Any:
    return setting(flag, env, f"{text} {_BETTER_BY_VARIABLE}", show_default=False, metavar="SECRET")


def words(given: list[str] | None) -> tuple[str, ...]:
    """``--lane a --lane b``, ``--lane a,b`` and ``JM_WORKER_LANES="a b"`` alike."""
    return tuple(word for text in given or [] for word in re.split(r"[,\s]+", text) if word)


def parse_priority(text: str) -> Priority:
    try:
        return PRIORITY_BY_LABEL[text.lower()]
    except KeyError:
        raise typer.BadParameter(f"{text!r} is unknown; use one of {', '.join(PRIORITY_BY_LABEL)}") from None


def parse_counts(given: Iterable[str]) -> dict[Priority, int]:
    """``high=2 low=1``, of which no priority comes twice."""
    counts: dict[Priority, int] = {}
    for word in given:
        label, equals, number = word.partition("=")
        if not equals or not number.isascii() or not number.isdigit():
            raise typer.BadParameter(f"{word[:60]!r} is not of the form PRIORITY=N; write it like high=2")
        priority = parse_priority(label)
        if priority in counts:
            raise typer.BadParameter(f"priority {priority.label!r} is given twice; say one number")
        counts[priority] = int(number[:6])
    return counts


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """Where NATS is and who we are to it."""

    TITLE: ClassVar[str] = "NATS"

    nats_url: Annotated[
        str | None,
        setting(
            "--nats-url",
            "JM_NATS_URL",
            "NATS servers, separated by commas. Without this and without credentials, the cluster that 'jm up' keeps "
            "in this folder is taken (.jm/env).",
            show_default=DEFAULT_NATS_URL,
            metavar="URL",
        ),
    ] = None
    nats_user: Annotated[str | None, setting("--nats-user", "JM_NATS_USER", "User name.", metavar="NAME")] = None
    nats_password: Annotated[str | None, secret("--nats-password", "JM_NATS_PASSWORD", "Its password.")] = field(
        default=None, repr=False
    )
    nats_token: Annotated[
        str | None, secret("--nats-token", "JM_NATS_TOKEN", "Token, instead of user and password.")
    ] = field(default=None, repr=False)
    nats_creds: Annotated[
        str | None, setting("--nats-creds", "JM_NATS_CREDS", "File with JWT and seed.", metavar="FILE")
    ] = None
    nats_nkey: Annotated[
        str | None, setting("--nats-nkey", "JM_NATS_NKEY", "File with an NKEY seed.", metavar="FILE")
    ] = None
    nats_tls_ca: Annotated[
        str | None,
        setting("--nats-tls-ca", "JM_NATS_TLS_CA", "CA certificates (PEM) to trust; makes TLS a must.", metavar="FILE"),
    ] = None
    nats_tls_cert: Annotated[
        str | None, setting("--nats-tls-cert", "JM_NATS_TLS_CERT", "Our certificate (PEM).", metavar="FILE")
    ] = None
    nats_tls_key: Annotated[
        str | None, setting("--nats-tls-key", "JM_NATS_TLS_KEY", "Its private key (PEM).", metavar="FILE")
    ] = None
    nats_tls_hostname: Annotated[
        str | None,
        setting(
            "--nats-tls-hostname",
            "JM_NATS_TLS_HOSTNAME",
            "Name in the server's certificate, if not the host's.",
            metavar="NAME",
        ),
    ] = None
    nats_tls_first: Annotated[
        bool, setting("--nats-tls-first", "JM_NATS_TLS_FIRST", "For servers with handshake_first.")
    ] = False
    nats_inbox_prefix: Annotated[
        str,
        setting(
            "--nats-inbox-prefix",
            "JM_NATS_INBOX_PREFIX",
            "What the subjects of answers to this process begin with; one per role (deploy/nats).",
            metavar="PREFIX",
        ),
    ] = "_INBOX"
    nats_connect_timeout: Annotated[
        float,
        setting("--nats-connect-timeout", "JM_NATS_CONNECT_TIMEOUT_S", "For the first connection.", metavar="SECONDS"),
    ] = 5.0

    def __post_init__(self) -> None:
        learn(self.nats_password, self.nats_token)
        learn_url(self.nats_url)

    @property
    def local(self) -> local_env.LocalEnv | None:
        """What ``jm up`` wrote in this folder, if nothing else says where NATS is.

        Credentials given without a server are not sent to one that a file in the current folder names.
        """
        named = (self.nats_url, self.nats_user, self.nats_password, self.nats_token, self.nats_creds, self.nats_nkey)
        return None if any(named) else local_env.find()

    def nats_config(self, local: local_env.LocalEnv | None, **tuning: Any) -> "NatsConfig":
        """Args: local: what stands in for a server that is not given."""
        from jm_nats.config import NatsConfig, parse_servers  # noqa: PLC0415

        if local is not None:
            local_env.mention(local)
        return NatsConfig(
            servers=parse_servers(self.nats_url or (local.nats_url if local else DEFAULT_NATS_URL)),
            user=self.nats_user,
            password=self.nats_password,
            token=self.nats_token,
            creds_file=self.nats_creds,
            nkey_seed_file=self.nats_nkey,
            tls_ca_file=self.nats_tls_ca,
            tls_cert_file=self.nats_tls_cert,
            tls_key_file=self.nats_tls_key,
            tls_hostname=self.nats_tls_hostname,
            tls_handshake_first=self.nats_tls_first,
            inbox_prefix=self.nats_inbox_prefix,
            connect_timeout_s=self.nats_connect_timeout,
            **tuning,
        )


@dataclass(frozen=True, kw_only=True)
class NatsTuning:
    """For connections that are to stay."""

    TITLE: ClassVar[str] = "NATS upkeep"

    nats_reconnect_wait_max: Annotated[
        float,
        setting(
            "--nats-reconnect-wait-max",
            "JM_NATS_RECONNECT_WAIT_MAX_S",
            "Between two attempts, at the most.",
            metavar="SECONDS",
        ),
    ] = 8.0
    nats_ping_interval: Annotated[
        int,
        setting(
            "--nats-ping-interval",
            "JM_NATS_PING_INTERVAL_S",
            "A server silent for three of them is given up.",
            metavar="SECONDS",
        ),
    ] = 10
    nats_pending_bytes_max: Annotated[
        int,
        setting(
            "--nats-pending-bytes-max",
            "JM_NATS_PENDING_BYTES_MAX",
            "What may wait in memory for the socket.",
            metavar="BYTES",
        ),
    ] = 64 * 1024 * 1024

    def fields(self) -> dict[str, Any]:
        return {
            "reconnect_wait_max_s": self.nats_reconnect_wait_max,
            "ping_interval_s": self.nats_ping_interval,
            "pending_bytes_max": self.nats_pending_bytes_max,
        }


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Which cluster."""

    TITLE: ClassVar[str] = "Cluster"

    cluster: Annotated[
        str | None,
        setting(
            "--cluster",
            "JM_CLUSTER",
            'Name of the cluster, as in JobMaster("name").',
            show_default=DEFAULT_CLUSTER,
            metavar="NAME",
        ),
    ] = None

    def names(self, local: local_env.LocalEnv | None) -> list[str]:
        """One or several, separated by commas, for commands that serve more than one.

        Raises:
            UsageError: one comes twice.
        """
        names = list(words([self.name(local)]))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"cluster {twice!r} is given twice; name each once")
        return names

    def name(self, local: local_env.LocalEnv | None) -> str:
        return self.cluster or (local.cluster if local else None) or DEFAULT_CLUSTER


@dataclass(frozen=True, kw_only=True)
class PostgresOptions:
    """Where the master's database is."""

    TITLE: ClassVar[str] = "Postgres"

    dsn: Annotated[
        str | None,
        setting(
            "--dsn",
            "JM_POSTGRES_DSN",
            f"postgresql://user:password@host:5432/database, with ?sslmode=verify-full for TLS. {_BETTER_BY_VARIABLE}",
            show_default=False,
            metavar="DSN",
        ),
    ] = field(default=None, repr=False)
    schema: Annotated[
        str,
        setting(
            "--schema",
            "JM_POSTGRES_SCHEMA",
            "Schema of the tables; one per cluster in a shared database. {cluster} in it stands for the cluster's "
            "name, in lower case and with _ for -.",
            metavar="NAME",
        ),
    ] = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        learn_url(self.dsn)

    def required_dsn(self, local: local_env.LocalEnv | None) -> str:
        """The DSN, or that of the cluster that ``jm up`` keeps here.

        Raises:
            UsageError: there is neither.
        """
        if self.dsn:
            return self.dsn
        if local is None:
            raise UsageError("no Postgres is given; set JM_POSTGRES_DSN (or --dsn), or start 'jm up' in this folder")
        local_env.mention(local)
        return local.postgres_dsn


@dataclass(frozen=True, kw_only=True)
class PostgresTuning:
    """How the master's database is used."""

    TITLE: ClassVar[str] = "Postgres upkeep"

    postgres_connections: Annotated[
        int,
        setting(
            "--postgres-connections",
            "JM_POSTGRES_CONNECTIONS",
            "Connections of this process, at the most.",
            metavar="N",
        ),
    ] = 5
    postgres_bouncer: Annotated[
        bool,
        setting("--postgres-bouncer", "JM_POSTGRES_BOUNCER", "Set behind a bouncer in transaction mode."),
    ] = False
    postgres_connect_timeout: Annotated[
        float,
        setting(
            "--postgres-connect-timeout", "JM_POSTGRES_CONNECT_TIMEOUT_S", "For one connection.", metavar="SECONDS"
        ),
    ] = 10.0
    postgres_command_timeout: Annotated[
        float,
        setting(
            "--postgres-command-timeout",
            "JM_POSTGRES_COMMAND_TIMEOUT_S",
            "Until a silent connection counts as dead.",
            metavar="SECONDS",
        ),
    ] = 30.0

    def fields(self) -> dict[str, Any]:
        return {
            "connections_max": self.postgres_connections,
            "bouncer": self.postgres_bouncer,
            "connect_timeout_s": self.postgres_connect_timeout,
            "command_timeout_s": self.postgres_command_timeout,
        }


def local_pair(nats: NatsOptions, postgres: PostgresOptions) -> local_env.LocalEnv | None:
    """What ``jm up`` keeps here, for commands that need both servers: both are its own, or both are given."""
    return nats.local if postgres.dsn is None else None


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What is logged, and how."""

    TITLE: ClassVar[str] = "Logging"

    log_level: Annotated[
        LogLevel,
        setting(
            "--log-level", "JM_LOG_LEVEL", "The least that is logged, on stderr.", metavar="debug|info|warning|error"
        ),
    ] = LogLevel.INFO
    log_format: Annotated[
        LogFormat,
        setting("--log-format", "JM_LOG_FORMAT", "For people, or one JSON object per line.", metavar="console|json"),
    ] = LogFormat.CONSOLE

    def start(self) -> None:
        from jm_cli.logs import start_logging  # noqa: PLC0415

        start_logging(*self.arguments())

    def arguments(self) -> tuple[str, bool]:
        """Of ``start_logging``."""
        return self.log_level.value, self.log_format is LogFormat.JSON


DataFolder = Annotated[
    Path, setting("--data", "JM_DATA", "Folder of the embedded servers, kept between runs.", metavar="DIR")
]


def on_command_line(context: typer.Context, prefix: str) -> bool:
    """Whether any option whose name starts so was typed, and not only set by a variable."""
    sources = (context.get_parameter_source(name) for name in context.params if name.startswith(prefix))
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)
