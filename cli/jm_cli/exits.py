"""How a command ends: one exit code per kind of trouble, and one line on stderr that says which (BR-206)."""

import os
import sys
import traceback
from enum import IntEnum
from typing import Final

from jm_cli.plain_text import one_line
from jm_cli.redaction import redact
from jm_core.errors import (
    ActionRefusedError,
    ClusterArchivedError,
    ClusterUnknownError,
    DuplicateJobError,
    InvalidJobError,
    InvalidNameError,
    InvalidScheduleError,
    InvalidSettingError,
    JmError,
    JobFailedError,
    NoSuchAgentError,
    NoSuchJobError,
    NoSuchScheduleError,
    RejectedError,
    ResultTimeoutError,
    ScheduleConflictError,
    ScheduleRefusedError,
)


class ExitCode(IntEnum):
    """Scripts rely on these numbers; docs/configuration.md lists them."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NATS = 3
    POSTGRES = 4
    NO_COORDINATOR = 5
    NOT_FOUND = 6
    OUTCOME = 7
    NO_WORKER = 8
    ALREADY_RUNNING = 9
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANING: Final = {
    ExitCode.OK: "what was asked for has happened",
    ExitCode.UNEXPECTED: "something unexpected; `JM_DEBUG=1` shows the traceback",
    ExitCode.USAGE: "the command line, a setting or the input cannot be used; nothing was done",
    ExitCode.NATS: "NATS cannot be reached or used",
    ExitCode.POSTGRES: "Postgres cannot be reached or used",
    ExitCode.NO_COORDINATOR: "no coordinator answers, or it cannot write to Postgres",
    ExitCode.NOT_FOUND: "no such job, schedule, rejected message, worker, bucket, agent or cluster",
    ExitCode.OUTCOME: "a job failed, was rejected (also by `--on-conflict reject`, or by an archived cluster), had not "
    "ended in time, or an action on it or on a schedule was refused",
    ExitCode.NO_WORKER: "`jm doctor`: all is well, but no worker is alive; `jm worker`: it is gone, does not "
    "answer, or refuses",
    ExitCode.ALREADY_RUNNING: "`jm up` runs already on this data",
    ExitCode.INTERRUPTED: "ended by a signal before it was done",
    ExitCode.PIPE_CLOSED: "whoever read the output closed it, as `head` does",
}


_hints: dict[ExitCode, str] = {}


class CliError(JmError):
    """A command's own trouble, with the exit code it ends with."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class UsageError(CliError):
    """What was typed cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USAGE, message)


def add_hint(code: ExitCode, text: str) -> None:
    """What to append to an error of this kind: something that only the command knows."""
    _hints[code] = text


def debugging() -> bool:
    return os.environ.get("JM_DEBUG", "") not in ("", "0")


def report(error: BaseException) -> ExitCode:
    """Say on stderr what went wrong, in one line, and which code to end with."""
    if debugging():
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    error = _alone(error)
    code = exit_code_of(error)
    text = "; ".join(filter(None, (_message(error, code), _hints.get(code))))
    sys.stderr.write(f"error: {one_line(redact(text))}\n")
    return code


def exit_code_of(error: BaseException) -> ExitCode:
    """By type, never by text."""
    if isinstance(error, CliError):
        return error.code
    if _is_usage(error):
        return ExitCode.USAGE
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    for kinds, code in _codes():
        if isinstance(error, kinds):
            return code
    return ExitCode.UNEXPECTED


def _codes() -> list[tuple[tuple[type[BaseException], ...], ExitCode]]:
    """Imported only once something has failed: the other layers' errors bring their drivers along."""
    from jm_master.agent_store import AgentStoreChangedError, SharedAgentError  # noqa: PLC0415
    from jm_master.migrate import MigrationBlockedError  # noqa: PLC0415
    from jm_master.pg_errors import StoreMisconfiguredError, StoreUnavailableError  # noqa: PLC0415
    from jm_nats.api_client import MasterUnavailableError, NoCoordinatorError  # noqa: PLC0415
    from jm_nats.client import ReceiptTimeoutError  # noqa: PLC0415
    from jm_nats.errors import (  # noqa: PLC0415
        AgentError,
        LeaseConflictError,
        PayloadTooLargeError,
        WorkerNameTakenError,
    )
    from jm_nats.worker_client import NoSuchWorkerError, WorkerRefusedError  # noqa: PLC0415

    return [
        ((MasterUnavailableError,), ExitCode.POSTGRES),
        ((NoCoordinatorError, ReceiptTimeoutError), ExitCode.NO_COORDINATOR),
        ((NoSuchJobError, ClusterUnknownError), ExitCode.NOT_FOUND),
        ((NoSuchWorkerError, WorkerRefusedError), ExitCode.NO_WORKER),
        ((NoSuchScheduleError, NoSuchAgentError), ExitCode.NOT_FOUND),
        ((ScheduleConflictError,), ExitCode.OUTCOME),
        ((InvalidScheduleError, ScheduleRefusedError), ExitCode.USAGE),
        ((JobFailedError, DuplicateJobError, RejectedError, ResultTimeoutError), ExitCode.OUTCOME),
        ((ClusterArchivedError, ActionRefusedError), ExitCode.OUTCOME),
        ((InvalidJobError, InvalidNameError, InvalidSettingError), ExitCode.USAGE),
        ((LeaseConflictError, PayloadTooLargeError, WorkerNameTakenError), ExitCode.USAGE),
        ((StoreUnavailableError, StoreMisconfiguredError, MigrationBlockedError), ExitCode.POSTGRES),
        ((AgentError, AgentStoreChangedError, SharedAgentError), ExitCode.NATS),
    ]


def _is_usage(error: BaseException) -> bool:
    """Whether it comes from reading the command line. Typer carries a click of its own from 0.26 on, and has no public
    name for the class: what tells it is that it can format itself and knows its exit code.
    """
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == ExitCode.USAGE


def _message(error: BaseException, code: ExitCode) -> str:
    if _is_usage(error):
        text = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        text = text.replace(": Value error, ", ": ")  # typer 0.29 and later put the name of the class into the sentence
        context = getattr(error, "ctx", None)
        return f"{text}; see '{context.command_path} --help'" if context else text
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, JobFailedError):
        headline = (error.error or "without an error text").partition("\n")[0]
        return f"job {error.job_id} ended {error.status}: {headline}; see 'jm job show {error.job_id}'"
    if isinstance(error, JmError):
        return _without_promise(error)
    hint = "" if debugging() else "; JM_DEBUG=1 shows where"
    return f"unexpected {type(error).__name__}: {error}{hint}" if code is ExitCode.UNEXPECTED else str(error)


def _alone(error: BaseException) -> BaseException:
    """What a task group wrapped; of several errors, the first that is ours."""
    while isinstance(error, BaseExceptionGroup):
        ours = [inner for inner in error.exceptions if isinstance(inner, JmError | BaseExceptionGroup)]
        error = (ours or error.exceptions)[0]
    return error


def _without_promise(error: JmError) -> str:
    """A command does not try again as the error of a coordinator's store promises."""
    where, problem = getattr(error, "where", None), getattr(error, "problem", None)
    if exit_code_of(error) is ExitCode.POSTGRES and where and problem:
        return f"Postgres at {where}: {problem}; start it, or correct JM_POSTGRES_DSN"
    return str(error)
