"""Handlers that run in child processes: those have to be importable."""

import os
import signal
import sys
import time

from jm_nats import JobMaster
from jm_nats.context import JobContext, NoRetry, Retry

app = JobMaster("processes")


@app.handler("add", executor="process")
def add(a: int, b: int = 0) -> int:
    return a + b


@app.handler("sleep", executor="process")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@app.handler("tell", executor="process")
def tell(ctx: JobContext) -> dict[str, object]:
    ctx.progress(0.5, "unheard")
    return {"key": ctx.idempotency_key, "attempt": ctx.attempt, "metadata": ctx.metadata, "pid": os.getpid()}


@app.handler("misbehave", executor="process")
def misbehave(how: str) -> object:
    match how:
        case "exit":
            sys.exit(0)
        case "interrupt":
            raise KeyboardInterrupt
        case "lock":
            raise UnpicklableError("a", "b")
        case "retry":
            raise Retry("later", in_=77)
        case "no retry":
            raise NoRetry("never")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "_exit":
            os._exit(3)
        case "nan":
            return float("nan")
    return None


class UnpicklableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.module = sys
        self.two = two


@app.handler("touch", executor="process")
def touch(path: str, seconds: float = 0.0) -> str:
    time.sleep(seconds)
    with open(path, "a") as file:  # noqa: PTH123 - a child that imports less starts sooner
        file.write("x")
    return path
