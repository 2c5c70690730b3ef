"""OpenTelemetry's SDK, when its own variables ask for it; without any of them the API stays a no-op.

Which exporter is the user's choice, by the variables every OpenTelemetry program reads
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/) and the packages they installed.
The SDK reads the rest of them (sampler, resource, batch sizes, endpoints) itself.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from typing import Any, Final

from jm_cli.exits import UsageError

log = logging.getLogger("jobmaster.cli")

DEFAULT_EXPORTER: Final = "otlp"  # the specification's
# By protocol, in the order in which they are tried when none is asked for.
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


@contextmanager
def telemetry(service: str) -> Iterator[None]:
    """Traces and metrics for as long as the block runs; what is buffered is sent at its end."""
    with ExitStack() as stack:
        if wanted():
            os.environ.setdefault("OTEL_SERVICE_NAME", f"jobmaster-{service}")
            _start_traces(stack)
            _start_metrics(stack)
        yield


def wanted() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(name.startswith("OTEL_") for name in os.environ)


def _start_traces(stack: ExitStack) -> None:
    exporter = _exporter("traces", "OTEL_TRACES_EXPORTER")
    if exporter is None:
        return
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    stack.callback(provider.shutdown)


def _start_metrics(stack: ExitStack) -> None:
    exporter = _exporter("metrics", "OTEL_METRICS_EXPORTER")
    if exporter is None:
        return
    from opentelemetry import metrics  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

    provider = MeterProvider(metric_readers=[PeriodicExportingMetricReader(exporter)])
    metrics.set_meter_provider(provider)
    stack.callback(provider.shutdown)


def _exporter(signal: str, variable: str) -> Any:
    """The exporter that is asked for; None for none.

    Raises:
        UsageError: it is asked for by name, and not installed.
    """
    asked = os.environ.get(variable)
    name = asked or DEFAULT_EXPORTER
    if name == "none":
        return None
    if name == "console":
        return _console(signal)
    installed = entry_points(group=f"opentelemetry_{signal}_exporter")
    for entry in _entries(name, signal):
        if entry in installed.names:
            return installed[entry].load()()
    remedy = "pip install opentelemetry-exporter-otlp, or set it to console or none"
    if asked:
        raise UsageError(f"{variable}={asked}: no such exporter is installed; {remedy}")
    log.warning("OTEL_* is set, but no %s exporter is installed; %s", signal, remedy.replace("it", variable, 1))
    return None


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
