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
    """Look again. The API's own providers, proxies and no-ops, record nothing; any other counts, whoever made it."""
    Active.tracing = _is_real(trace.get_tracer_provider())
    Active.metering = _is_real(metrics.get_meter_provider())


def _is_real(provider: object) -> bool:
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
