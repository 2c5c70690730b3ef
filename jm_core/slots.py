"""Which waiting job a free slot takes next: weighted by priority, idle share lent out, nobody starved."""

import math
from collections.abc import Mapping

from jm_core.model import WEIGHTS, Priority


class Turns:
    """What a worker remembers of whose turn it was: a virtual time, and when in it each priority is next due."""

    __slots__ = ("due", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.due: dict[Priority, float] = dict.fromkeys(Priority, 0.0)


def next_priority(waiting: Mapping[Priority, int], running: Mapping[Priority, int], turns: Turns) -> Priority | None:
    """The priority that gets the free slot; its turn is noted in ``turns``.

    Two rules. *Slots*: a priority that already runs its weighted share of the slots stands back for those below
    theirs, so that long jobs of a low one never fill the worker. *Turns*: among the others, starts go round by weight
    (start-time fair queueing, Goyal, Vin and Cheng 1996). The first alone would starve on a worker with fewer slots
    than the sum of the weights: there a low priority's share is less than one slot, and never its turn.

    Returns:
        None when nothing waits. With every priority waiting, running jobs and starts settle at 1:2:3:5:8, and one that
        is below its share gets a slot within two rounds of 19 starts; with only one waiting it gets every slot.
    """
    rivals = [priority for priority, count in waiting.items() if count]
    if len(rivals) < 2:
        return rivals[0] if rivals else None
    slots = sum(running.values()) + 1
    weights = sum([WEIGHTS[priority] for priority in rivals])
    best, best_due = rivals[0], math.inf
    for priority in rivals:
        if running[priority] * weights < slots * WEIGHTS[priority]:  # true for one at least: the shares sum up
            due = max(turns.due[priority], turns.now)
            if due < best_due or (due == best_due and priority > best):
                best, best_due = priority, due
    turns.now = best_due  # who comes back after a pause starts from here, without saved-up turns
    turns.due[best] = best_due + 1.0 / WEIGHTS[best]
    return best
