"""Handlers: a function, the name jobs call it by, its defaults, and the check of its arguments."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_type_hints

import msgspec
import msgspec.inspect
import uuid_utils
from msgspec import UNSET, Raw, UnsetType

from jm_core import limits
from jm_core.errors import InvalidJobError, InvalidSettingError
from jm_core.ids import NEW_ID_REMEDY, parse_handler_name, parse_job_id, parse_name
from jm_core.intake import check_fields
from jm_core.model import Priority
from jm_core.payload import check_args, check_decoded_args, check_no_lost_floats, cut_text
from jm_core.retry import Backoff, problem_of
from jm_core.wire import HandlerDefaults, Submission
from jm_nats.context import JobContext

if TYPE_CHECKING:
    from jm_nats.client import JobClient, Receipt, Wait

Executor = Literal["async", "thread", "process"]
# `submit` takes these beside the handler's own arguments, so a handler may not use them as parameter names.
SUBMIT_OPTIONS: Final = frozenset(
    {
        "client",
        "wait",
        "run_at",
        "delay",
        "lane",
        "priority",
        "max_attempts",
        "timeout",
        "unique_key",
        "unique_for",
        "on_conflict",
        "metadata",
        "job_id",
    }
)
_NO_OPTIONS: Final = (None,) * 10  # of `job`, without its id
PROBLEM_BYTES_MAX: Final = 300
IN_ONE_STEP_S: Final = 50e-6  # what is waited for seldom comes that soon
QUICK_RUNS: Final = 50
_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_JSON_TYPES: Final = (str, int, float, bool, type(None), list, dict)


class ArgumentsError(InvalidJobError):
    """Arguments that do not fit the handler's signature."""

    def __init__(self, handler: str, problem: str) -> None:
        # The problem may quote a stranger's key, of any length.
        problem = cut_text(problem, PROBLEM_BYTES_MAX)
        super().__init__("args", f"handler {handler!r}: {problem}", remedy="pass what its signature asks for")


class CheckedJob(Submission, omit_defaults=True, kw_only=True, gc=False):
    """A job that its handler has made: nothing about it needs to be checked a second time."""


class Handler:
    """A registered handler. Calling it calls the plain function, as tests of an application want."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        lane: str,
        priority: Priority,
        max_attempts: int,
        timeout_s: float,
        backoff: Backoff,
        executor: Executor | None,
        exclusive: bool = False,
    ) -> None:
        self.name = parse_handler_name(name)
        self.function = function
        self.lane = parse_name("lane", lane)
        self.priority = priority
        self.max_attempts = max_attempts
        self.timeout_s = timeout_s
        self.backoff = backoff
        self.executor: Executor = executor or ("async" if inspect.iscoroutinefunction(function) else "thread")
        # One call makes its coroutine and runs none of its code; what was only marked to be one might do anything.
        self.is_plain = self.executor == "async" and bool(_flags_of(function) & inspect.CO_COROUTINE)
        self.waits = not self.is_plain  # for anything that takes time: learned from its attempts
        self._quick = 0
        self.exclusive = exclusive
        self.context_parameter: str | None = None
        self.takes_any = False
        self._check_settings()
        self._arguments = self._argument_struct()
        self._decoder = msgspec.json.Decoder(self._arguments)
        self._takes_all = not self.takes_any and UNSET not in self._arguments.__struct_defaults__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} {self.executor} lane={self.lane} priority={self.priority.label}>"

    # -- submitting

    async def submit(
        self,
        client: "JobClient",
        /,
        *,
        wait: "Wait" = "queued",
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        lane: str | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (of an attempt, not of this call)
        unique_key: str | None = None,
        unique_for: float | timedelta | None = None,
        on_conflict: str | None = None,
        metadata: Mapping[str, str] | None = None,
        job_id: str | None = None,
        **args: Any,
    ) -> "Receipt":
        """Queue one job with ``args``; everything else has the handler's defaults.

        ``unique_key``: held while the job is unfinished, and for ``unique_for`` seconds after it was queued, whatever
        became of it. ``on_conflict`` is for a key that is held: ``return_existing`` (the receipt names the holder),
        ``reject`` (``DuplicateJobError``), ``replace`` (the holder is cancelled if it still waits).

        Returns:
            The receipt that ``wait`` asked for: ``queued`` (NATS has stored it) or ``recorded`` (Postgres has).

        Raises:
            ArgumentsError, InvalidJobError: nothing was sent.
            RejectedError, DuplicateJobError: only with ``wait="recorded"``.
        """
        job = self.job(
            args,
            run_at=run_at,
            delay=delay,
            lane=lane,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
            unique_key=unique_key,
            unique_for=unique_for,
            on_conflict=on_conflict,
            metadata=metadata,
            job_id=job_id,
        )
        return await client.submit(job, wait=wait)

    def job(
        self,
        args: Mapping[str, Any],
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        lane: str | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        unique_key: str | None = None,
        unique_for: float | timedelta | None = None,
        on_conflict: str | None = None,
        metadata: Mapping[str, str] | None = None,
        job_id: str | None = None,
    ) -> Submission:
        """A checked job, ready for ``client.submit``.

        Raises:
            ArgumentsError, InvalidJobError, InvalidNameError.
        """
        submission = CheckedJob(
            handler=self.name,
            args=self.encode_args(args),
            id=str(uuid_utils.uuid7()) if job_id is None else parse_job_id(job_id, remedy=NEW_ID_REMEDY),
            run_at=run_at,
            delay_s=_seconds(delay),
            lane=self.lane if lane is None else lane,
            priority=self.priority.label if priority is None else _label(priority),
            max_attempts=self.max_attempts if max_attempts is None else max_attempts,
            timeout_s=self.timeout_s if timeout is None else timeout,
            unique_key=unique_key,
            unique_for_s=_seconds(unique_for),
            on_conflict=on_conflict,
            metadata=_dict(metadata),
        )
        options = (run_at, delay, lane, priority, max_attempts, timeout, unique_key, unique_for, on_conflict, metadata)
        if options != _NO_OPTIONS:  # else it has the handler's own settings, which were checked when it was declared
            check_fields(submission)
        return submission

    def jobs(self, rows: Iterable[Mapping[str, Any]], **options: Any) -> Iterator[Submission]:
        """A checked job for every row of arguments; ``options`` as in ``job``, the same for all.

        Checked lazily, row by row: an error names the row, and what came before it may already be queued.
        """
        template = CheckedJob(handler=self.name, **self.job_template(**options))
        make, encode_args = uuid_utils.uuid7, self.encode_args
        for index, args in enumerate(rows):
            try:
                raw = encode_args(args)
            except InvalidJobError as error:
                raise InvalidJobError(f"row {index}", str(error), remedy="mend or drop that row") from None
            job = copy(template)  # a fifth of what making one by keywords takes
            job.args, job.id = raw, str(make())
            yield job

    def job_template(self, **options: Any) -> dict[str, Any]:
        """The fields that all jobs of one ``jobs`` call share, checked once."""
        if own := sorted(options.keys() & {"job_id", "unique_key", "unique_for", "on_conflict"}):
            raise InvalidJobError(
                "options", f"{' and '.join(own)} cannot be shared by many jobs", remedy="use job() for each of them"
            )
        probe = Submission(handler=self.name)
        defaults = {"lane": self.lane, "priority": self.priority, "max_attempts": self.max_attempts}
        given = {name: value for name, value in options.items() if value is not None}
        merged = {**defaults, "timeout": self.timeout_s, **given}
        template: dict[str, Any] = {
            "run_at": merged.pop("run_at", None),
            "delay_s": _seconds(merged.pop("delay", None)),
            "lane": merged.pop("lane"),
            "priority": _label(merged.pop("priority")),
            "max_attempts": merged.pop("max_attempts"),
            "timeout_s": merged.pop("timeout"),
            "metadata": _dict(merged.pop("metadata", None)),
        }
        if merged:
            raise InvalidJobError("options", f"unknown {sorted(merged)}", remedy=f"use {sorted(SUBMIT_OPTIONS)}")
        check_fields(msgspec.structs.replace(probe, **template))
        return template

    def encode_args(self, args: Mapping[str, Any]) -> Raw:
        """JSON of ``args`` after checking it against the handler's annotations.

        Raises:
            ArgumentsError, InvalidJobError.
        """
        try:
            raw = _encode(args)
        except (TypeError, ValueError, UnicodeEncodeError, OverflowError, RecursionError) as error:
            raise ArgumentsError(self.name, f"not JSON: {error}") from None
        check_no_lost_floats(args, raw, "args")
        self._check(raw)
        return Raw(raw)

    def _check(self, raw: bytes) -> None:
        # The same decoder that runs before the handler is called: what passes here passes there.
        self._decoded(raw)
        if self.takes_any:
            check_args(raw)  # of what it skipped, the decoder has seen the outline only
        else:
            check_decoded_args(raw)

    def _decoded(self, raw: bytes | Raw) -> Any:
        try:
            return self._decoder.decode(raw)
        except Exception as error:  # noqa: BLE001  (an annotated type's own code may raise anything)
            text = str(error).replace("`$.", "`") if isinstance(error, msgspec.DecodeError) else repr(error)
            raise ArgumentsError(self.name, text) from None

    # -- running

    def decode_args(self, raw: bytes | Raw) -> dict[str, Any]:
        """Keyword arguments for the function, typed as annotated. What the sender left out keeps Python's default.

        Raises:
            ArgumentsError: they do not fit; the job is quarantined, not retried.
        """
        decoded = self._decoded(raw)
        if self._takes_all:
            return msgspec.structs.asdict(decoded)
        given = _decode_any(raw) if self.takes_any else {}
        for name in self._arguments.__struct_fields__:
            if (value := getattr(decoded, name)) is not UNSET:
                given[name] = value
        return given

    def took(self, run_s: float) -> None:
        """What an attempt took that was expected to wait. Some in a row that did not look like it: expect that."""
        self._quick = self._quick + 1 if run_s < IN_ONE_STEP_S else 0
        if self._quick >= QUICK_RUNS:
            self.waits, self._quick = not self.is_plain, 0

    def defaults(self) -> HandlerDefaults:
        """What the cluster is told, so that foreign clients may leave it out."""
        return HandlerDefaults(
            self.lane, self.priority.label, self.max_attempts, self.timeout_s, self.backoff, executor=self.executor
        )

    # -- declaration

    def _argument_struct(self) -> Any:
        try:
            hints = get_type_hints(self.function, include_extras=True)
            parameters = inspect.signature(self.function).parameters.values()
        except Exception as error:
            problem = f"its annotations cannot be read: {error!r}"
            raise self._undeclarable(f"{problem}; import them outside TYPE_CHECKING, and declare a function") from error
        fields: list[tuple[str, Any, Any]] = []
        for parameter in parameters:
            annotation = hints.get(parameter.name, Any)
            if annotation is JobContext or JobContext in get_args(annotation):
                self.context_parameter = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                self.takes_any = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise self._undeclarable(f"parameter {parameter.name!r} is positional; arguments are passed by name")
            elif parameter.name in SUBMIT_OPTIONS:
                raise self._undeclarable(f"parameter {parameter.name!r} is the name of a submit option; rename it")
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, annotation, msgspec.NODEFAULT))
            else:
                fields.append((parameter.name, annotation | UnsetType if annotation is not Any else Any, UNSET))
        return self._struct_of(fields)

    def _struct_of(self, fields: list[tuple[str, Any, Any]]) -> Any:
        try:
            struct = msgspec.defstruct(
                f"{self.name}Args", fields, kw_only=True, forbid_unknown_fields=not self.takes_any, gc=False
            )
            msgspec.json.Decoder(struct)
            foreign = sorted({cls.__qualname__ for cls in _foreign_types(msgspec.inspect.type_info(struct), set())})
        except Exception as error:
            raise self._undeclarable(f"an annotation that JSON cannot be checked against: {error}") from error
        if foreign:
            problem = f"JSON has no {', '.join(foreign)}"
            raise self._undeclarable(f"{problem}; annotate with str, int, list, dict, a dataclass or msgspec.Struct")
        return struct

    def _check_settings(self) -> None:
        try:
            _label(self.priority)
        except InvalidJobError as error:
            raise self._undeclarable(f"priority: {error.problem}; {error.remedy}") from None
        self.priority = Priority(self.priority)
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= limits.ATTEMPTS_MAX:
            raise self._undeclarable(f"max_attempts {self.max_attempts!r} is no number from 1 to {limits.ATTEMPTS_MAX}")
        if not 0 < self.timeout_s <= limits.TIMEOUT_S_MAX:
            raise self._undeclarable(f"timeout {self.timeout_s} is outside 0 to {limits.TIMEOUT_S_MAX:.0f} seconds")
        if (problem := problem_of(self.backoff)) is not None:
            raise self._undeclarable(f"backoff: {problem}")
        if self.executor not in ("async", "thread", "process"):
            raise self._undeclarable(f"executor {self.executor!r} is unknown; use async, thread or process")
        self._check_function()

    def _check_function(self) -> None:
        function: Any = self.function
        if not callable(function) or inspect.isclass(function):
            raise self._undeclarable(f"{function!r:.100} is no function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self._undeclarable("it yields; a handler returns its result, it cannot be a generator")
        if (self.executor == "async") != inspect.iscoroutinefunction(function):
            raise self._undeclarable(f"executor {self.executor!r} does not fit a function of this kind")
        if self.executor == "process" and "<" in getattr(function, "__qualname__", "<"):
            raise self._undeclarable("a process handler must be a function of a module, so that a child can import it")

    def _undeclarable(self, problem: str) -> InvalidSettingError:
        return InvalidSettingError(f"handler {self.name!r}: {problem}")


def _flags_of(function: Callable[..., Any]) -> int:
    return getattr(getattr(function, "__code__", None), "co_flags", 0)


def _foreign_types(info: Any, seen: set[Any]) -> Iterator[type]:
    """Classes in a type that no JSON value is an instance of: jobs with them could be declared and never run."""
    if isinstance(info, msgspec.inspect.CustomType):
        if not any(issubclass(json_type, info.cls) for json_type in _JSON_TYPES):
            yield info.cls
    elif isinstance(info, list | tuple):
        for part in info:
            yield from _foreign_types(part, seen)
    elif isinstance(info, msgspec.Struct):
        if (cls := getattr(info, "cls", None)) is not None and cls in seen:
            return  # a class that contains itself
        seen.add(cls)
        for name in info.__struct_fields__:
            yield from _foreign_types(getattr(info, name), seen)


# Options come from code that nothing has checked. A wrong one is passed on as it is: `check_fields` knows what to say.


def _seconds(delay: float | timedelta | None) -> float | None:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _dict(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(metadata) if isinstance(metadata, Mapping) else metadata


def _label(priority: Any) -> str:
    """A string, a bool or a number without a name raises InvalidJobError."""
    if isinstance(priority, bool) or priority not in tuple(Priority):
        names = ", ".join(f"Priority.{p.name}" for p in Priority)
        raise InvalidJobError("priority", f"{priority!r:.40} is unknown", remedy=f"use one of {names}")
    return Priority(priority).label
