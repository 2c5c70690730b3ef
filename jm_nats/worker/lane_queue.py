"""What waits for a slot at one priority: within a lane in order, between lanes in turn.

Without turns a lane that is flooded would put its whole backlog, seconds of work, before the single job of another
lane that the same worker serves.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar


class _Port(Protocol):
    lane: str


class _Queued(Protocol):
    @property
    def port(self) -> _Port: ...


T = TypeVar("T", bound=_Queued)


class LaneQueue(Generic[T]):
    """First in, first out, for each lane; who was served goes to the end of the lanes."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[T]:
        """In no order between lanes."""
        for queue in self._lanes.values():
            yield from queue

    def append(self, item: T) -> None:
        self._queue(item).append(item)

    def appendleft(self, item: T) -> None:
        """Before the others of its lane."""
        self._queue(item).appendleft(item)

    def _queue(self, item: T) -> deque[T]:
        queue = self._lanes.get(item.port.lane)
        if queue is None:
            queue = self._lanes[item.port.lane] = deque()
        return queue

    def popleft(self) -> T:
        """Raises: StopIteration when empty: whoever asks knows that it is not."""
        lane = next(iter(self._lanes))
        queue = self._lanes[lane]
        item = queue.popleft()
        if not queue:
            del self._lanes[lane]
        elif len(self._lanes) > 1:
            self._lanes.move_to_end(lane)
        return item

    def without(self, gone: Collection[int]) -> None:
        """Leave out what has one of these ``id``s."""
        for lane, queue in list(self._lanes.items()):
            kept = deque(item for item in queue if id(item) not in gone)
            if kept:
                self._lanes[lane] = kept
            else:
                del self._lanes[lane]
