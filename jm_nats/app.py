"""The application object: a cluster's name, its handlers, and where its NATS is."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from jm_core import limits
from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, ScheduleSpec
from jm_core.errors import InvalidSettingError
from jm_core.model import DEFAULT_LANE, Priority
from jm_core.retry import DEFAULT_BACKOFF, Backoff, Delays, Exponential, Fixed
from jm_nats.client import JobClient
from jm_nats.config import NatsConfig
from jm_nats.handlers import Executor, Handler
from jm_nats.schedules import declared
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
        self.schedules: dict[str, ScheduleSpec] = {}
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

    def schedule(
        self,
        *,
        cron: str | None = None,
        every: str | float | timedelta | None = None,
        rrule: str | None = None,
        plain: str | None = None,
        zone: str | None = None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        lane: str | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        unique_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        misfire: MisfirePolicy | str = MisfirePolicy.RUN_ONCE,
        misfire_limit: int = 10,
        misfire_window: float | timedelta | None = None,
        overlap: OverlapPolicy | str = OverlapPolicy.ALLOW,
        jitter: float | timedelta = 0.0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        max_runs: int | None = None,
    ) -> Callable[[Handler], Handler]:
        """Run the handler below on a schedule. Several may be stacked.

        Written as::

            @jm.schedule(cron="0 9 * * 1-5", zone="Europe/Berlin", args={"region": "eu"})
            @jm.handler("report")
            async def report(region: str) -> None: ...

        The schedule exists while workers with this code do: it appears and changes with it, and an hour after the last
        of them it is inactive (``jm_core.static_schedules`` has the rule for different versions side by side). An
        operator may pause it, which outlives redeploys.

        Args:
            cron, every, rrule, plain: the expression, exactly one; ``every`` also as seconds or ``timedelta``.
            zone: IANA name; by default the cluster's.
            name: unique in the cluster; by default the handler's name.
            args: for the handler, checked against its signature.
            lane, priority, max_attempts, timeout: by default the handler's.
            unique_key: a time at which any job holds it is skipped. The schedule's jobs hold it until they end: there
                is neither a window beyond that (``unique_for``) nor another rule for conflicts.
            misfire, misfire_limit, misfire_window, overlap: ``jm_core.api_schedules`` says what each policy does.
            jitter: each job is delayed by 0 to so many seconds.

        Raises:
            InvalidSettingError: at import, naming the schedule, with the expression's own error.
        """

        def register(handler: Handler) -> Handler:
            spec = declared(
                handler,
                name=name,
                args=args,
                cron=cron,
                every=every,
                rrule=rrule,
                plain=plain,
                zone=zone,
                lane=lane,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
                unique_key=unique_key,
                metadata=metadata,
                misfire=misfire,
                misfire_limit=misfire_limit,
                misfire_window=misfire_window,
                overlap=overlap,
                jitter=jitter,
                starts_at=starts_at,
                ends_at=ends_at,
                max_runs=max_runs,
            )
            if spec.name in self.schedules:
                other = self.schedules[spec.name].handler
                raise InvalidSettingError(f"schedule {spec.name!r} is declared for {other!r} already; give it a name")
            self.schedules[spec.name] = spec
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
