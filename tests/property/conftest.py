"""One profile for all: no deadline (a busy machine is no counterexample), and a failure prints how to repeat it."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "jobmaster", deadline=None, max_examples=40, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("jobmaster")
