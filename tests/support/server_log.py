"""What the test's Postgres has logged: at once, where its statistics come seconds later."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jm_master.embedded import PostgresServer

DEADLOCK: Final = "deadlock detected"


@contextmanager
def no_deadlock(server: PostgresServer) -> Iterator[None]:
    """Raises: AssertionError: Postgres had to end one while the body ran."""
    before = server.log_path.stat().st_size
    yield
    with server.log_path.open("rb") as log:
        log.seek(before)
        lines = log.read().decode(errors="replace").splitlines()
    found = [line for line in lines if DEADLOCK in line]
    assert not found, found
