"""Requests and replies of ``jm.<c>.api.retention-…``."""

from datetime import datetime
from typing import Final

from msgspec import Struct

OP_RETENTION_GET: Final = "retention-get"  # {} -> RetentionView
OP_RETENTION_RUN: Final = "retention-run"  # {} -> RetentionView: a pass begins now
OP_RETENTION_COUNT: Final = "retention-count"  # CountRequest -> RetentionCount


class KindView(Struct, omit_defaults=True):
    """``keep_s`` None: for ever. What was removed, by all leaders so far."""

    kind: str
    keep_s: float | None = None
    removed: int = 0
    removed_at: datetime | None = None  # the last time


class RetentionView(Struct, omit_defaults=True):
    """The leader's retention. ``passed_at``: when it last had been through all that was due for a look. ``looked_at``:
    when it last did anything without an error, a minute ago at most if all is well.
    """

    kinds: list[KindView]
    passes: int = 0
    passed_at: datetime | None = None
    looked_at: datetime | None = None
    chunk: int = 0  # where in table `job` it is, of `chunks`
    chunks: int = 0
    problem: str | None = None  # why the last step failed, if it did
    agent: str | None = None  # whose leader does it, where it is another one's


class RetentionCountRequest(Struct):
    """What would go: counted from ``chunk`` on, for about half a second."""

    chunk: int = 0


class RetentionCount(Struct):
    """``counts`` by kind, of the chunks looked at. Ask again from ``next_chunk`` on, and add; None: that was all."""

    counts: dict[str, int]
    chunks: int
    next_chunk: int | None = None
