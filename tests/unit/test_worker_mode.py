import pytest

from jm_cli.role_settings import Mode, WorkerOptions
from jm_core.errors import InvalidSettingError
from jm_core.model import WorkerMode
from jm_nats.worker.config import WorkerConfig


def test_a_coordinator_is_no_worker():
    with pytest.raises(InvalidSettingError, match="mode"):
        WorkerConfig(mode=WorkerMode.COORDINATOR)


@pytest.mark.parametrize("mode", Mode)
def test_every_other_mode_is_offered_and_taken(mode):
    assert WorkerConfig(**WorkerOptions(mode=mode).fields()).mode == mode.value


def test_the_modes_offered_are_all_but_the_coordinator_s():
    assert {mode.value for mode in Mode} == {mode.value for mode in WorkerMode} - {"coordinator"}
