"""Waiting between tries, spread out so that processes that failed together do not come back together."""

import random


class Backoff:
    """Doubles up to a cap; each wait is drawn from the upper half of it."""

    def __init__(self, *, first_s: float, cap_s: float) -> None:
        self.first_s = first_s
        self.cap_s = cap_s
        self._next_s = first_s

    def next_s(self) -> float:
        wait_s = self._next_s
        self._next_s = min(self.cap_s, wait_s * 2)
        return random.uniform(wait_s / 2, wait_s)

    @property
    def is_fresh(self) -> bool:
        """Nothing has been waited for since the start or the last ``reset``."""
        return self._next_s == self.first_s

    def reset(self) -> None:
        self._next_s = self.first_s
