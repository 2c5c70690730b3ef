"""When loops that look now and then look again: at moments that they share.

An idle process pays for its wake-ups, hardly for what it does in them: ten loops that look once a second, each at its
own moment, wake it ten times; at one moment, once. (`docs/performance.md` has the figures.)
"""


def until_tick_s(now_s: float, period_s: float, *, phase_s: float = 0.0) -> float:
    """How long to sleep until the next multiple of ``period_s`` that is at least half a period away.

    So from half to one and a half of it the first time, and one period from then on: a loop whose work is short looks
    as often as one that sleeps ``period_s``, and loops whose periods are multiples of each other look together.

    Args:
        now_s: of any clock that only grows.
        phase_s: shifts the moments; one per process, so that those of a machine do not look all at once.
    """
    left_s = period_s - (now_s - phase_s) % period_s
    return left_s if left_s >= period_s / 2 else left_s + period_s
