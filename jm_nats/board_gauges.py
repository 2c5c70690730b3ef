"""How a group is, as gauges. They outlive a group that has failed stop: while its process stays up to say why, so do
they; one that ended in order takes them along.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from jm_core.health import Health
from jm_nats import telemetry
from jm_nats.telemetry import Gauges, Group, Values, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jm_nats.health import HealthBoard

LEVELS: Final = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2}


@contextmanager
def measured(board: HealthBoard, group: Group, stores: Mapping[str, str]) -> Iterator[Gauges]:
    """All that runs in the block is measured as ``group``.

    Args:
        stores: name of a store -> of its trouble on the board.
    """
    telemetry.enter_group(group)
    telemetry.refresh()
    board.group = group
    telemetry.show_zeros(group.role)

    def connected() -> Values:
        return {((names.STORE, store),): int(not board.is_in_trouble(name)) for store, name in stores.items()}

    gauges = Gauges(group)
    gauges.ask(names.GROUP_HEALTH, lambda: LEVELS[board.verdict().health])
    gauges.ask_all(names.CONNECTED, connected)
    gauges.open()
    yield gauges
    gauges.close()  # not when it has failed
