"""Logging of the long-running commands: to stderr, for people or as JSON lines; secrets taken out in either."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

from jm_cli.plain_text import safe
from jm_cli.redaction import redact

# What every record has; the rest came in by `extra`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class ConsoleFormatter(logging.Formatter):
    """``12:00:00 INFO    worker: bucket lost  bucket=b1 epoch=3``."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("jobmaster.")
        facts = "".join(f" {key}={_shown(value)}" for key, value in extras(record).items())
        line = safe(f"{at} {record.levelname:<7} {name}: {record.getMessage()}{' ' if facts else ''}{facts}")
        return redact(line + _trace(self, record))


class JsonFormatter(logging.Formatter):
    """One object a line, the extras beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in extras(record).items() if key not in entry}
        trace = _trace(self, record).strip()
        if trace:
            entry["exception"] = trace
        return redact(json.dumps(entry, default=str, ensure_ascii=False))


def start_logging(level: str, *, json_lines: bool = False) -> None:
    """Send the root logger's records to stderr. Also what asyncio and the drivers have to say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else ConsoleFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def quiet_logging() -> None:
    """For commands that answer and end: their one line on stderr says it all."""
    start_logging("critical")


def extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() or c == '"' for c in text) else text


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    text = formatter.formatException(record.exc_info)
    return "\n" + "\n".join(safe(line) for line in text.splitlines())
