"""A job that is here, from the message that brought it to the report that lets the message go."""

from jm_core.wire import Run
from jm_nats.worker.outcomes import BucketPort, Delivery


class Held:
    """``again``: further deliveries of it, which must not be acked before it has ended."""

    __slots__ = ("again", "delivery", "port", "run", "since_s", "size")

    def __init__(self, run: Run, port: BucketPort, delivery: Delivery, since_s: float) -> None:
        self.run = run
        self.port = port
        self.delivery = delivery
        self.since_s = since_s  # loop time at which it could have started
        self.size = memoryview(run.args).nbytes
        self.again: tuple[Delivery, ...] = ()
