"""How a group is, as gauges. Its health outlives a group that has failed stop, for as long as somebody has its board to
say why (the health port); whoever ended in order says nothing more.
"""

from __future__ import annotations

import weakref
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

    Returns:
        The group's gauges, which are gone after the block.
    """
    telemetry.enter_group(group)
    telemetry.refresh()
    board.group = group
    telemetry.show_zeros(group.role)
    health = _health(board, group)
    try:
        with Gauges(group) as gauges:
            gauges.ask_all(names.CONNECTED, lambda: _connected(board, stores))
            yield gauges
    except Exception:
        raise  # its health stays
    except BaseException:
        health.close()
        raise
    health.close()


def _health(board: HealthBoard, group: Group) -> Gauges:
    there = weakref.ref(board)

    def level() -> Values:
        living = there()
        return {} if living is None else {(): LEVELS[living.verdict().health]}

    gauges = Gauges(group)
    gauges.ask_all(names.GROUP_HEALTH, level)
    gauges.open()
    weakref.finalize(board, gauges.close)
    return gauges


def _connected(board: HealthBoard, stores: Mapping[str, str]) -> Values:
    return {((names.STORE, store),): int(not board.is_in_trouble(name)) for store, name in stores.items()}
