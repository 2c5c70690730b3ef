"""OpenTelemetry's SDK, when a setting of ours or one of its own variables asks for it; else the API stays a no-op.

Ours (``TelemetryOptions``) say where: a collector, a port for Prometheus. Everything else is said by the variables that
every OpenTelemetry program reads
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/): exporter, headers, sampler, batch
sizes, resource. What is lost or late here is telemetry, never a job: queues are bounded and drop, and at the end the
process waits ``SHUTDOWN_S`` for what is still to be sent.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from jm_cli.exits import UsageError
from jm_cli.scrapes import Scrapes
from jm_cli.telemetry_options import TelemetryOptions
from jm_cli.version import version
from jm_core.errors import InvalidSettingError

log = logging.getLogger("jobmaster.cli")

DEFAULT_EXPORTER: Final = "otlp"  # the specification's
SHUTDOWN_S: Final = 3.0
# By protocol, in the order in which they are tried when none is asked for.
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_EXTRA: Final = "pip install 'jobmaster-nats[telemetry]'"


@dataclass(frozen=True)
class Identity:
    """Who we are to whoever looks at the telemetry: its resource. Several of a process are separated by commas."""

    service: str
    instances: Sequence[str]
    clusters: Sequence[str]

    def attributes(self) -> dict[str, str]:
        return {
            "service.name": f"jobmaster-{self.service}",
            "service.instance.id": ",".join(self.instances),
            "service.version": version(),
            "jobmaster.cluster": ",".join(sorted(set(self.clusters))),
        }


@contextmanager
def telemetry(options: TelemetryOptions, identity: Identity) -> Iterator[Scrapes]:
    """Traces and metrics for as long as the block runs; what is buffered at its end is sent within ``SHUTDOWN_S``.

    Returns:
        who reads the page for Prometheus; nobody does if there is none.

    Raises:
        UsageError: an exporter that is asked for is not installed.
        InvalidSettingError: the port for Prometheus cannot be opened.
    """
    scrapes = Scrapes()
    with ExitStack() as stack:
        if wanted(options):
            resource = _resource(identity)
            ends = [*_start_traces(options, resource), *_start_metrics(options, resource, stack, scrapes)]
            stack.callback(_end_all, ends)
        yield scrapes


def wanted(options: TelemetryOptions) -> bool:
    is_asked = bool(options.otlp_endpoint) or options.prometheus_port is not None
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        if is_asked:
            log.warning("telemetry is switched off by OTEL_SDK_DISABLED")
        return False
    return is_asked or _exports_by_variables(options)


def require_installed(options: TelemetryOptions) -> None:
    """Before anything is started that would need it.

    Raises:
        UsageError: what the settings ask for is not installed.
    """
    if options.otlp_endpoint:
        _otlp_exporter("traces", options)
    if options.prometheus_port is not None:
        _prometheus()


def _exports_by_variables(options: TelemetryOptions) -> bool:
    """Any variable of OpenTelemetry's starts the export; beside a port for Prometheus only one that is about that, for
    a resource or a sampler may be meant for the port alone.
    """
    names = [name for name in os.environ if name.startswith("OTEL_")]
    return any("EXPORTER" in name or options.prometheus_port is None for name in names)


def _resource(identity: Identity) -> Any:
    """What the variables say of it comes before what we know."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415

    said = OTELResourceDetector().detect().attributes
    return Resource.create({name: text for name, text in identity.attributes().items() if name not in said})


def _start_traces(options: TelemetryOptions, resource: Any) -> list[Callable[[], None]]:
    exporter = _exporter("traces", "OTEL_TRACES_EXPORTER", options)
    if exporter is None:
        return []
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return [provider.shutdown]


def _start_metrics(
    options: TelemetryOptions, resource: Any, stack: ExitStack, scrapes: Scrapes
) -> list[Callable[[], None]]:
    from opentelemetry import metrics  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415

    exporter = _exporter("metrics", "OTEL_METRICS_EXPORTER", options)
    readers: list[Any] = []
    if options.prometheus_port is not None:
        readers.append(_serve_prometheus(options, stack, scrapes))
    if exporter is not None:
        readers.append(exporter if isinstance(exporter, MetricReader) else PeriodicExportingMetricReader(exporter))
    if not readers:
        return []
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return [provider.shutdown]


def _end_all(ends: Sequence[Callable[[], None]]) -> None:
    """Side by side, and not for longer than ``SHUTDOWN_S``: a collector that does not answer must not hold the exit.

    They are daemon threads, so the interpreter does not wait for one that is left over.
    """
    threads = [threading.Thread(target=_end, args=(end,), daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    waits = iter([SHUTDOWN_S] + [0.1] * len(threads))
    for thread in threads:
        thread.join(next(waits))
    if any(thread.is_alive() for thread in threads):
        log.warning("telemetry was not delivered at the end", extra={"waited_s": SHUTDOWN_S})


def _end(end: Callable[[], None]) -> None:
    try:
        end()
    except Exception as error:  # noqa: BLE001 - the SDK raises bare exceptions here
        log.warning("telemetry was not delivered at the end", extra={"problem": str(error)[:200]})


# -- Prometheus


def _serve_prometheus(options: TelemetryOptions, stack: ExitStack, scrapes: Scrapes) -> Any:
    """A port of its own, in threads of its own: a scrape is answered also while the event loop is blocked."""
    reader_class, registry_class, process, start = _prometheus()
    registry, host, port = registry_class(), options.prometheus_host, options.prometheus_port
    process(registry=registry)  # the process' own, its start among them: alerts tell young totals from old ones by it
    try:
        server, _ = start(port, addr=host, registry=registry)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InvalidSettingError(
            f"the port for Prometheus {host}:{port} cannot be used: {error}; choose another --prometheus-port"
        ) from None
    registry.register(scrapes)
    stack.callback(_close, server)
    log.info("metrics are served", extra={"host": host, "port": server.server_port})
    return reader_class(registry=registry)


def _prometheus() -> tuple[Any, Any, Any, Any]:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server  # noqa: PLC0415
    except ImportError:
        raise UsageError(f"--prometheus-port needs opentelemetry-exporter-prometheus; {_EXTRA}") from None
    return PrometheusMetricReader, CollectorRegistry, ProcessCollector, start_http_server


def _close(server: Any) -> None:
    server.shutdown()
    server.server_close()


# -- exporters


def _exporter(signal: str, variable: str, options: TelemetryOptions) -> Any:
    """The exporter that is asked for; None for none.

    Raises:
        UsageError: it is asked for by name, and not installed.
    """
    asked = os.environ.get(variable)
    name = asked or DEFAULT_EXPORTER
    if name == "none":
        return None
    if options.otlp_endpoint:
        return _otlp_exporter(signal, options)
    if not _exports_by_variables(options):
        return None
    if name == "console":
        return _console(signal)
    installed = entry_points(group=f"opentelemetry_{signal}_exporter")
    for entry in _entries(name, signal):
        if entry in installed.names:
            return installed[entry].load()()
    if asked:
        raise UsageError(
            f"{variable}={asked}: no such exporter is installed; {_EXTRA}, or set it to otlp, console or none"
        )
    log.warning("no exporter for OTEL_* is installed", extra={"signal": signal, "remedy": f"{_EXTRA}; {variable}=none"})
    return None


def _otlp_exporter(signal: str, options: TelemetryOptions) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    except ImportError:
        raise UsageError(f"--otlp-endpoint needs opentelemetry-exporter-otlp-proto-http; {_EXTRA}") from None
    return (OTLPSpanExporter if signal == "traces" else OTLPMetricExporter)(endpoint=options.endpoint_of(signal))


def _console(signal: str) -> Any:
    if signal == "traces":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter()
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter  # noqa: PLC0415

    return ConsoleMetricExporter()


def _entries(name: str, signal: str) -> list[str]:
    """The names under which packages offer the exporter ``name``."""
    if name != DEFAULT_EXPORTER:
        return [name]
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", general)
    return [_OTLP.get(protocol, protocol)] if protocol else list(_OTLP.values())
