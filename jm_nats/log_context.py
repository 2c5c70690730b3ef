"""Whose log lines these are: the job whose handler runs, the worker or coordinator that it runs in, the trace.

A handler's own lines carry the job as ours do, from wherever it logs: context variables follow ``await``, new tasks and
the threads that handlers run in. Nothing is looked up until a record is really written, so a job costs one assignment.

Without the CLI: ``handler.addFilter(JobFacts())`` puts the facts on the records of any ``logging.Handler``.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from opentelemetry import trace

from jm_core.traceparent import trace_id_of


class Attempt(Protocol):
    """The attempt that runs, a ``wire.Run`` for one. ``trace``: of its submission, for where no span says better."""

    @property
    def id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def trace(self) -> str | None: ...


class GroupNow(NamedTuple):
    """The worker or coordinator. ``role``: what its name is called in a record."""

    role: str
    name: str
    cluster: str


OF_A_JOB: Final = frozenset({"job_id", "attempt", "trace_id", "span_id"})

current_job: Final[ContextVar[Attempt | None]] = ContextVar("jm_job", default=None)
_current_group: Final[ContextVar[GroupNow | None]] = ContextVar("jm_group", default=None)


def set_group(role: str, name: str, cluster: str) -> None:
    """For this task, and for whatever is started from it."""
    _current_group.set(GroupNow(role, name, cluster))


def current_group() -> GroupNow | None:
    return _current_group.get()


@contextmanager
def job_logged(job: Attempt, group: GroupNow | None) -> Iterator[None]:
    """In a child process that runs one handler: both, for as long as it runs."""
    _current_group.set(group)
    token = current_job.set(job)
    try:
        yield
    finally:
        current_job.reset(token)


def facts() -> dict[str, str | int]:
    """What is known of who logs now."""
    found: dict[str, str | int] = {}
    job, group = current_job.get(), _current_group.get()
    if job is not None:
        found |= {"job_id": job.id, "attempt": job.attempt}
    if group is not None:
        found |= {group.role: group.name, "cluster": group.cluster}
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        found |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    elif job is not None and job.trace is not None and (trace_id := trace_id_of(job.trace)) is not None:
        found["trace_id"] = trace_id
    return found


class JobFacts(logging.Filter):
    """Puts the facts on every record; what a record says of itself stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        own = record.__dict__
        known = facts()
        if own.get("job_id", known.get("job_id")) != known.get("job_id"):
            known = {name: known[name] for name in known.keys() - OF_A_JOB}  # a line about another job than runs here
        for name, value in known.items():
            own.setdefault(name, value)
        return True
