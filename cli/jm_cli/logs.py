"""Logging of the long-running commands: to stderr, for people or as JSON lines (``log_format``)."""

import logging
import sys
import threading
import time
from typing import Final, TextIO

from jm_cli.log_format import ConsoleFormatter, JsonFormatter

# Libraries that tell of each failed attempt; an hour without a collector would be thousands of lines.
TALKATIVE: Final = ("opentelemetry", "urllib3")
TALKATIVE_EVERY_S: Final = 60.0


def start_logging(
    level: str,
    json_lines: bool = False,  # noqa: FBT001, FBT002 - also passed as a tuple
    stream: TextIO | None = None,
) -> None:
    """Send the root logger's records to stderr. Also what asyncio and the drivers have to say."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json_lines else ConsoleFormatter())
    handler.addFilter(NowAndThen())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)  # else a line for each export, also at debug


def add_facts() -> None:
    """Job, worker, cluster and trace on every record; for the processes that have them."""
    from jm_nats.log_context import JobFacts  # noqa: PLC0415 - brings opentelemetry along

    for handler in logging.getLogger().handlers:
        handler.addFilter(JobFacts())


def start_child_logging(level: str, json_lines: bool) -> None:  # noqa: FBT001 - by position, over a pipe
    """In a process that runs a worker's handlers: as the worker does."""
    from jm_cli import redaction, telemetry_options  # noqa: PLC0415

    redaction.learn_environment()
    telemetry_options.learn_environment()
    # There sys.stderr leads nowhere (anyio); the descriptor is the worker's.
    start_logging(level, json_lines, open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115
    add_facts()


def quiet_logging() -> None:
    """For commands that answer and end: their one line on stderr says it all."""
    start_logging("critical")


class NowAndThen(logging.Filter):
    """Of each talkative library a line a minute at each level, with how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._said_s: dict[tuple[str, int], float] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        library = record.name.partition(".")[0]
        if library not in TALKATIVE or record.levelno < logging.INFO:
            return True
        with self._lock:
            return self._is_due(record, (library, record.levelno))

    def _is_due(self, record: logging.LogRecord, kind: tuple[str, int]) -> bool:
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, -TALKATIVE_EVERY_S) < TALKATIVE_EVERY_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._said_s[kind] = now_s
        if left_out := self._left_out.pop(kind, 0):
            record.__dict__["left_out"] = left_out
        return True
