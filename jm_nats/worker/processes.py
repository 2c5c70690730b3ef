"""Runs ``executor="process"`` handlers in child processes that can be killed.

By ``anyio.to_process``: it keeps idle children for reuse, and kills the child when the waiting side is cancelled,
which is just what a timeout needs.
"""

import ctypes
import functools
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc
import anyio.to_process
import msgspec

from jm_core.payload import check_no_lost_floats, check_result
from jm_nats import telemetry
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.handlers import Handler
from jm_nats.log_context import GroupNow, current_group, job_logged
from jm_nats.worker import failures, kin

PR_SET_PDEATHSIG: Final = 1

# Children get a session of their own: a signal to the worker's process group is the worker's business (BR-132), and
# until a child has set its signals up, which takes imports, it could not ignore one. anyio has no parameter for it.
# The session is a process group, too: who kills a child kills what it has started with it (BR-194). And their stderr is
# ours: anyio gives them a pipe that nobody reads, in which a library that complains much would get stuck.
if hasattr(anyio.to_process, "open_process"):

    async def _open_in_a_session(*args: Any, **kwargs: Any) -> anyio.abc.Process:
        options = {"start_new_session": True, "stderr": None, "env": kin.pool_environment()}
        process = await anyio.open_process(*args, **kwargs | options)
        process.kill = functools.partial(_kill_group, process)  # type: ignore[method-assign]
        return process

    anyio.to_process.open_process = _open_in_a_session


def _kill_group(process: anyio.abc.Process) -> None:
    """While it has not been waited for, its number is its own, and so is its group's."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class ChildFailed(msgspec.Struct):
    """An exception of the child as text: exceptions themselves may refuse to be pickled or rebuilt (BR-120)."""

    error: str
    kind: str  # the exception's class
    retry_in_s: float | None = None
    may_retry: bool = True


class ContextData(msgspec.Struct):
    """What a child needs to build its own ``JobContext``."""

    job_id: str
    handler: str
    lane: str
    attempt: int
    max_attempts: int
    dispatch: int
    metadata: dict[str, str]
    deadline_s: float


class Preparation(NamedTuple):
    """A function that a child calls once, before its first handler: how to log, for one."""

    module: str
    function: str
    arguments: tuple[Any, ...] = ()


class Logged(NamedTuple):
    """What a child needs so that its log lines and spans belong to the attempt."""

    id: str
    attempt: int
    trace: str | None
    group: GroupNow | None


_preparation: Preparation | None = None


def prepare_children(preparation: Preparation | None) -> None:
    """What children of this process are to call first; None for nothing."""
    global _preparation  # noqa: PLW0603 - of a process, as its logging is
    _preparation = preparation


async def run_in_child(
    handler: Handler, args: bytes, data: ContextData, trace: str | None = None
) -> bytes | ChildFailed:
    """Run the handler in a child and return its result as JSON. Cancelling this kills the child.

    Args:
        trace: traceparent of the attempt's span.

    How many children there are is the caller's business; anyio's own limit would wait where nobody sees it.

    Raises:
        anyio.BrokenWorkerProcess: the child died (``os._exit``, a signal, out of memory).
    """
    function = handler.function
    return await anyio.to_process.run_sync(
        _call,
        function.__module__,
        function.__qualname__,
        args,
        msgspec.structs.asdict(data),
        Logged(data.job_id, data.attempt, trace, current_group()),
        _preparation,
        cancellable=True,
        limiter=anyio.CapacityLimiter(1),
    )


def _call(  # noqa: PLR0917 - anyio passes positions only
    module: str,
    qualname: str,
    args: bytes,
    data: Mapping[str, Any],
    logged: Logged,
    preparation: Preparation | None,
) -> bytes | ChildFailed:
    """In the child: import the handler, call it, and turn whatever happens into a value that can be pickled."""
    _settle_signals()
    kin.enter_pool()
    _prepare(preparation)
    with job_logged(logged, logged.group), telemetry.continued(logged.trace):
        return _called(module, qualname, args, data)


_prepared: list[Preparation] = []


def _prepare(preparation: Preparation | None) -> None:
    """Once. A job must not fail because the way to log cannot be set up."""
    if preparation is not None and preparation not in _prepared:
        _prepared.append(preparation)
        with suppress(Exception):
            getattr(importlib.import_module(preparation.module), preparation.function)(*preparation.arguments)


def _called(module: str, qualname: str, args: bytes, data: Mapping[str, Any]) -> bytes | ChildFailed:
    try:
        handler = _find(module, qualname)
        kwargs = handler.decode_args(args)
        if handler.context_parameter:
            kwargs[handler.context_parameter] = JobContext(**data)
        return encode_result(handler.function(**kwargs))
    except Retry as error:
        return ChildFailed(failures.describe(error), type(error).__qualname__, retry_in_s=error.in_s)
    except NoRetry as error:
        return ChildFailed(failures.describe(error), type(error).__qualname__, may_retry=False)
    except BaseException as error:  # noqa: BLE001  (SystemExit in a handler fails the job, not the child)
        return ChildFailed(failures.describe(error), type(error).__qualname__)


def _find(module: str, qualname: str) -> Handler:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, Handler):
        raise TypeError(
            f"{module}.{qualname} is not the handler any more; keep its name bound to what the decorator returned"
        )
    return found


def _settle_signals() -> None:
    """Ctrl-C and SIGTERM to the process group are the worker's business: it lets running jobs finish (BR-132). Its own
    death is ours: without it nobody would hear the result.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        with suppress(OSError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def encode_result(value: Any) -> bytes:
    """JSON of a handler's return value; bytes become base64 text.

    Raises:
        InvalidJobError, TypeError: it cannot be stored.
    """
    if value is None:
        return b"null"
    raw = msgspec.json.encode(value)
    check_no_lost_floats(value, raw, "result")
    check_result(raw)
    return raw
