"""The application object: a cluster's name, its handlers, and where its NATS is."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from jm_core import limits
from jm_core.errors import InvalidSettingError
from jm_core.model import DEFAULT_LANE, Priority
from jm_core.retry import DEFAULT_BACKOFF, Backoff, Delays, Exponential, Fixed
from jm_nats.client import JobClient
from jm_nats.config import NatsConfig
from jm_nats.handlers import Executor, Handler
from jm_nats.subjects import Names


class JobMaster:
    """Handlers by decorator, clients by ``client()``; processes are started with ``jm worker module:app``.

    Args:
        cluster: name of the cluster, ``[A-Za-z0-9_-]{1,40}``.
        servers: NATS URLs; by default ``JM_NATS_URL``, else ``nats://127.0.0.1:4222``.
        nats: full connection settings instead of ``servers``.
    """

    def __init__(
        self, cluster: str, *, servers: str | Sequence[str] | None = None, nats: NatsConfig | None = None
    ) -> None:
        if servers is not None and nats is not None:
            raise InvalidSettingError("give servers or nats, not both")
        self.names = Names(cluster)
        self.cluster = cluster
        self.handlers: dict[str, Handler] = {}
        self._servers = (servers,) if isinstance(servers, str) else servers
        self._nats = nats

    def __repr__(self) -> str:
        return f"<JobMaster {self.cluster!r} handlers={sorted(self.handlers)}>"

    def nats_config(self) -> NatsConfig:
        """Connection settings: arguments first, environment second. Read late, so that tests and CLI may set it."""
        if self._nats is not None:
            return self._nats
        env = {**os.environ, "JM_NATS_URL": ",".join(self._servers)} if self._servers else os.environ
        return NatsConfig.from_env(env)

    def use_nats(self, nats: NatsConfig, *, override: bool) -> None:
        """What the command line says. Without ``override`` the constructor's arguments come first."""
        if override or (self._nats is None and self._servers is None):
            self._nats = nats

    def client(self) -> JobClient:
        """A client for ``async with``; connects on entering."""
        return JobClient(self.cluster, self.nats_config())

    def handler(
        self,
        name: str,
        *,
        lane: str = DEFAULT_LANE,
        priority: Priority = Priority.MEDIUM,
        max_attempts: int = limits.MAX_ATTEMPTS,
        timeout: float | timedelta = limits.JOB_TIMEOUT_S,
        backoff: Backoff | Sequence[float] | float = DEFAULT_BACKOFF,
        executor: Executor | None = None,
        exclusive: bool = False,
    ) -> Callable[[Callable[..., Any]], Handler]:
        """Register a function as the handler of jobs called ``name``.

        Args:
            timeout: seconds until an attempt is ended as ``timed_out``.
            backoff: a policy, a list of waits, or one fixed wait; seconds.
            executor: ``async`` for coroutine functions; else ``thread`` (default; cannot be stopped at its timeout)
                or ``process`` (killed at its timeout).
            exclusive: cancel a running one as soon as the worker's lease is in doubt, because from its end on the job
                may run elsewhere. Others go on through an outage of NATS: most must not be thrown away for it. A
                thread cannot be stopped, so it must look at ``ctx.cancelled``.

        Raises:
            InvalidSettingError, InvalidNameError: at import, naming the handler and the setting.
        """
        if not isinstance(name, str):
            raise InvalidSettingError(f"a handler needs a name: write @app.handler('name'), not {name!r:.100}")

        def register(function: Callable[..., Any]) -> Handler:
            if name in self.handlers:
                other = self.handlers[name].function
                raise InvalidSettingError(
                    f"handler {name!r} is already {other.__module__}.{other.__qualname__}; choose another name"
                )
            handler = Handler(
                function,
                name,
                lane=lane,
                priority=priority,
                max_attempts=max_attempts,
                timeout_s=_seconds(name, "timeout", timeout),
                backoff=_policy(name, backoff),
                executor=executor,
                exclusive=exclusive,
            )
            self.handlers[name] = handler
            return handler

        return register

    def lanes(self) -> list[str]:
        """The lanes its handlers use by default: what a worker serves when it is told nothing else."""
        return sorted({h.lane for h in self.handlers.values()} | {DEFAULT_LANE})


def _policy(name: str, backoff: Backoff | Sequence[float] | float) -> Backoff:
    if isinstance(backoff, Fixed | Delays | Exponential):
        return backoff
    if isinstance(backoff, Sequence) and not isinstance(backoff, str | bytes):
        return Delays(tuple(_seconds(name, "backoff", delay) for delay in backoff))
    return Fixed(_seconds(name, "backoff", backoff))


def _seconds(name: str, setting: str, value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSettingError(f"handler {name!r}: {setting} {value!r:.40} is no number of seconds")
    return float(value)
