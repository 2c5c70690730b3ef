"""How much of the slots' time was in use while work waited. Pure."""

from collections.abc import Sequence

Span = tuple[float, float]  # started, finished


def usage(spans: Sequence[Span], slots: int) -> float:
    """The share of ``slots`` in use from the first start to the last one: up to then a job waited for a slot.

    Not to the last end: when nothing waits, slots have a right to be idle.
    """
    first, last = min(start for start, _ in spans), max(start for start, _ in spans)
    if last <= first:
        return 1.0
    used = sum(min(end, last) - start for start, end in spans)
    return used / (slots * (last - first))
