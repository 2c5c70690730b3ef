"""NaN passes ``value <= 0`` as well as ``value > limit``, and first shows as a ValueError somewhere in a library."""

import dataclasses

import pytest

from jm_core.errors import InvalidSettingError
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_nats.config import NatsConfig
from jm_nats.worker.config import WorkerConfig

VALID = (CoordinatorConfig(), PostgresConfig(dsn="postgresql://jm@db/jobs"), NatsConfig(), WorkerConfig())
DURATIONS = [
    pytest.param(config, field.name, id=f"{type(config).__name__}-{field.name}")
    for config in VALID
    for field in dataclasses.fields(config)
    if isinstance(getattr(config, field.name), float)
]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize(("config", "name"), DURATIONS)
def test_a_duration_that_is_no_finite_number_is_refused(config, name, wrong):
    with pytest.raises(InvalidSettingError, match=f"^{name} is {wrong}; it must be a finite number$"):
        dataclasses.replace(config, **{name: wrong})
