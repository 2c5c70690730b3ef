"""Where a process of the cluster sends its telemetry: the settings, checked. What they do is in ``telemetry``."""

import os
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import parse_qsl, urlsplit

from jm_cli.exits import UsageError
from jm_cli.redaction import learn, learn_headers, learn_url
from jm_cli.settings import setting

PORT_MAX: Final = 65_535
SIGNAL_PATHS: Final = {"traces": "/v1/traces", "metrics": "/v1/metrics"}
HEADER_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
)
ENDPOINT_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions:
    """Traces and metrics of a process, with OpenTelemetry; needs the extra `telemetry`."""

    TITLE: ClassVar[str] = "Telemetry"

    otlp_endpoint: Annotated[
        str | None,
        setting(
            "--otlp-endpoint",
            "JM_OTLP_ENDPOINT",
            "Base URL of an OpenTelemetry collector, to which traces and metrics go by OTLP over HTTP "
            "(http://collector:4318). Comes before the endpoints and protocols of OTEL_*; headers, sampler, resource "
            "and the rest are theirs.",
            show_default="nothing is sent",
            metavar="URL",
        ),
    ] = field(default=None, repr=False)
    prometheus_port: Annotated[
        int | None,
        setting(
            "--prometheus-port",
            "JM_PROMETHEUS_PORT",
            "Port of /metrics; 0 takes a free one, which is logged. Of several processes (--processes, jm up) the "
            "second has the next port, and so on.",
            show_default="none is opened",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
        ),
    ] = None
    prometheus_host: Annotated[
        str,
        setting(
            "--prometheus-host",
            "JM_PROMETHEUS_HOST",
            "Address it listens on; 0.0.0.0 for scrapes from outside.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"

    def __post_init__(self) -> None:
        """Raises:
        UsageError: the endpoint is no base URL.
        """
        learn_endpoint(self.otlp_endpoint)
        learn_environment()
        if self.otlp_endpoint:
            _check_endpoint(self.otlp_endpoint)

    def endpoint_of(self, signal: str) -> str:
        """Where one signal goes: the base URL with the path that the specification appends."""
        parts = urlsplit(self.otlp_endpoint or "")
        return parts._replace(path=parts.path.rstrip("/") + SIGNAL_PATHS[signal]).geturl()

    def nth(self, number: int) -> Self:
        """For the process ``number`` of several, from 1 on: a port of its own."""
        if not self.prometheus_port:
            return self
        return replace(self, prometheus_port=self.prometheus_port + number - 1)

    def check_room(self, processes: int) -> None:
        """Raises:
        UsageError: so many processes need ports that do not exist.
        """
        if self.prometheus_port and self.prometheus_port + processes - 1 > PORT_MAX:
            raise UsageError(
                f"--prometheus-port {self.prometheus_port}: {processes} processes need the ports up to "
                f"{self.prometheus_port + processes - 1}, the limit is {PORT_MAX}; choose a lower one, or 0"
            )

    def variables(self) -> dict[str, str]:
        """For a child process that is to do the same."""
        given = {
            "JM_OTLP_ENDPOINT": self.otlp_endpoint or "",
            "JM_PROMETHEUS_PORT": "" if self.prometheus_port is None else str(self.prometheus_port),
            "JM_PROMETHEUS_HOST": self.prometheus_host,
        }
        return {name: text for name, text in given.items() if text}


VARIABLES: Final = ("JM_OTLP_ENDPOINT", "JM_PROMETHEUS_PORT", "JM_PROMETHEUS_HOST")


def learn_endpoint(url: str | None) -> None:
    """Credentials may be in the user part, or in the query."""
    learn_url(url)
    try:
        query = urlsplit(url or "").query
    except ValueError:  # no URL at all; it is refused, and not shown
        learn(url)
        return
    learn(query, *(value for _, value in parse_qsl(query)))


def learn_environment() -> None:
    """Secrets of the variables that the exporters read by themselves."""
    for name in HEADER_VARIABLES:
        learn_headers(os.environ.get(name))
    for name in ENDPOINT_VARIABLES:
        learn_endpoint(os.environ.get(name))


def _check_endpoint(url: str) -> None:
    example = "use the collector's base URL, like http://collector:4318"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        good = False
        parts = None
    if not good or parts is None or any(char.isspace() or not char.isprintable() for char in url):
        raise UsageError(f"--otlp-endpoint is no http(s) URL; {example}")
    for path in SIGNAL_PATHS.values():
        if parts.path.rstrip("/").endswith(path):
            raise UsageError(f"--otlp-endpoint ends in {path}, which is appended by itself; {example}")
