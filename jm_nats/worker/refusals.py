"""Dispatches that will not start here, although they have not come yet or are gone again."""

from typing import Final

REFUSED_S: Final = 86_400.0  # at least; a bucket's backlog may be hours long, and what is due later lies in the server
RECALLED_S: Final = 3_600.0  # at least; whoever asked has given up by then, and the reconciler has found the job


class Marks:
    """The highest dispatch by job, kept for ``keep_s`` to twice that: the old ones go all at once, at no cost each."""

    __slots__ = ("_keep_s", "_old", "_since_s", "_young")

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._since_s = 0.0
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def put(self, job_id: str, dispatch: int, *, now_s: float) -> None:
        age_s = now_s - self._since_s
        if age_s >= self._keep_s:
            self._old = self._young if age_s < 2 * self._keep_s else {}
            self._young, self._since_s = {}, now_s
        self._young[job_id] = max(dispatch, self.get(job_id))

    def get(self, job_id: str) -> int:
        """0: none."""
        return max(self._young.get(job_id, 0), self._old.get(job_id, 0))

    def drop(self, job_id: str) -> None:
        self._young.pop(job_id, None)
        self._old.pop(job_id, None)


class Refusals:
    """Bounded by time and by what comes, never by how many other jobs pass meanwhile."""

    __slots__ = ("_recalled", "_refused")

    def __init__(self) -> None:
        self._refused = Marks(REFUSED_S)  # to be dropped when they come
        self._recalled = Marks(RECALLED_S)  # given back, and given back again to who asks again

    @property
    def any(self) -> bool:
        """Whether something is to be dropped when it comes."""
        return len(self._refused) > 0

    def refuse(self, job_id: str, dispatch: int, *, now_s: float) -> None:
        self._refused.put(job_id, dispatch, now_s=now_s)

    def refuses(self, job_id: str, dispatch: int) -> bool:
        return self._refused.get(job_id) >= dispatch

    def came(self, job_id: str, dispatch: int) -> None:
        """It came and was dropped, or comes no more; from now on it is known like any other job."""
        if self._refused.get(job_id) <= dispatch:
            self._refused.drop(job_id)

    def recalled(self, job_id: str, dispatch: int, *, now_s: float) -> None:
        self._recalled.put(job_id, dispatch, now_s=now_s)

    def was_recalled(self, job_id: str, dispatch: int) -> bool:
        return self._recalled.get(job_id) == dispatch
