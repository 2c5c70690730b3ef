"""What an application can name without knowing our modules."""

import pytest

import jm_nats


@pytest.mark.parametrize(
    "name",
    [
        "ActionRefusedError",
        "ActionView",
        "AuditQuery",
        "ClusterArchivedError",
        "JobVerdict",
        "MasterUnavailableError",
        "NoCoordinatorError",
        "ScheduleView",
    ],
)
def test_what_the_client_raises_and_returns_can_be_named_from_the_package(name):
    assert name in jm_nats.__all__
    assert hasattr(jm_nats, name)
