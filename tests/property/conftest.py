"""One profile for all: no deadline (a busy machine is no counterexample), and a failure prints how to repeat it."""

import threading

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "jobmaster", deadline=None, max_examples=40, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("jobmaster")


@pytest.fixture(autouse=True, scope="module")
def nobody_draws_beside_us():
    """A worker of the tests before, whose NATS was killed, may still be at its last heartbeat. It waits random times
    between its tries, and Hypothesis takes that for strategies that draw from `random` themselves.
    """
    for thread in threading.enumerate():
        if thread.name == "jm-heartbeat":
            thread.join(60)
            assert not thread.is_alive(), "a heartbeat goes on although its worker was stopped"
