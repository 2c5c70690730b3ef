"""Whether an SDK is there.

Without one all of this package is skipped after one check, because a no-op span still costs microseconds, and a job
costs only a few dozen.
"""

from opentelemetry import metrics, trace


class Active:
    """Whether an SDK was installed, looked at now and then: asking the API for every job costs more than the job."""

    tracing = False
    metering = False


def refresh() -> None:
    """Look again. The API's own proxy providers record nothing, so only an SDK's counts."""
    provider = trace.get_tracer_provider()
    Active.tracing = not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    Active.metering = type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.sdk")
