"""Which waiting job a free slot takes next: weighted by priority, idle share lent out, nobody starved."""

from collections.abc import Mapping

from jm_core.model import WEIGHTS, Priority


def next_priority(waiting: Mapping[Priority, int], running: Mapping[Priority, int]) -> Priority | None:
    """The priority whose share of the running jobs is furthest below its weight.

    A stride rule over what runs *now*: with every priority waiting, running jobs settle at 1:2:3:5:8; with only
    one waiting it gets every slot. Even the lowest gets its next slot after a bounded number of ends.

    Returns:
        None when nothing waits. A tie goes to the higher priority.
    """
    best: Priority | None = None
    best_load = 0.0
    for priority, count in waiting.items():
        if not count:
            continue
        load = (running.get(priority, 0) + 1) / WEIGHTS[priority]
        if best is None or load < best_load or (load == best_load and priority > best):
            best, best_load = priority, load
    return best
