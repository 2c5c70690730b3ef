"""A worker's settings that make no sense are refused before anything starts."""

import pytest

from jm_core.errors import InvalidSettingError
from jm_nats.worker.config import WorkerConfig


@pytest.mark.parametrize(("lease_s", "heartbeat_s"), [(30, 30), (30, 10.1), (2, 1), (5, 0), (5, -1)])
def test_a_lease_shorter_than_three_heartbeats_is_refused(lease_s: float, heartbeat_s: float) -> None:
    """BR-026, BR-061: a beat that lands at the deadline kills healthy workers at random."""
    with pytest.raises(InvalidSettingError, match="at least three heartbeats"):
        WorkerConfig(lease_s=lease_s, heartbeat_s=heartbeat_s)


def test_three_heartbeats_are_enough() -> None:
    assert WorkerConfig(lease_s=6, heartbeat_s=2).lease_s == 6
