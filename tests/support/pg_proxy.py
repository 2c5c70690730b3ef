"""A proxy that knows enough of Postgres's protocol to lose the answer to one COMMIT.

The server commits, the client never hears of it: the one fault after which nobody can tell what is the case without
looking (BR-050). https://www.postgresql.org/docs/current/protocol-flow.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.proxy import Proxy, Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.proxy import Connection

IDLE: Final = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, in no transaction: whatever there was is committed
START_CODES: Final = {80877103, 80877104}  # asks for TLS, for GSS: no start yet
LENGTH_BYTES: Final = 4


class PostgresProxy(Proxy):
    """``drop_next_commit_answer("INSERT INTO jobmaster.job")``: of the next statement that has these words."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.dropped: list[str] = []  # the words, once their answer is lost
        self._wanted: list[str] = []

    def drop_next_commit_answer(self, words: str) -> None:
        """Let the next statement with ``words`` in it, and its implicit commit, pass; swallow the answer and cut."""
        self._wanted.append(words)

    def dsn(self, dsn: str) -> str:
        """The same database, through here."""
        return dsn.replace(f":{self.server_port}/", f":{self.port}/")

    def watcher(self, connection: Connection) -> Watcher:
        return _Session(self, connection)

    def take(self, sql: str) -> str | None:
        """The words that ``sql`` has and that somebody waits for; they are used up."""
        for words in self._wanted:
            if words in sql:
                self._wanted.remove(words)
                return words
        return None


class _Session(Watcher):
    """Follows one connection: which statement is executed now, and when its answer is complete."""

    def __init__(self, proxy: PostgresProxy, connection: Connection) -> None:
        self._proxy = proxy
        self._connection = connection
        self._buffer = b""
        self._started = False
        self._prepared: dict[bytes, str] = {}
        self._losing: str | None = None
        self._tail = b""

    def sent(self, data: bytes) -> None:
        self._buffer += data
        for kind, body in self._messages():
            self._follow(kind, body)

    def answered(self, data: bytes) -> bytes:
        if self._losing is None:
            return data
        self._tail = (self._tail + data)[-len(IDLE) :]
        if self._tail == IDLE:
            self._proxy.dropped.append(self._losing)
            self._connection.cut()
        return b""

    def _follow(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._prepared[name] = sql.decode(errors="replace")
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self._losing = self._losing or self._proxy.take(self._prepared.get(name, ""))
        elif kind == b"Q":
            self._losing = self._losing or self._proxy.take(body.rstrip(b"\0").decode(errors="replace"))

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Complete messages of the client; those before the start of the session have no kind."""
        while True:
            head = 1 if self._started else 0
            if len(self._buffer) < head + LENGTH_BYTES:
                return
            size = head + int.from_bytes(self._buffer[head : head + LENGTH_BYTES])
            if len(self._buffer) < size:
                return
            message, self._buffer = self._buffer[:size], self._buffer[size:]
            if not self._started:
                self._started = int.from_bytes(message[LENGTH_BYTES : 2 * LENGTH_BYTES]) not in START_CODES
                continue
            yield message[:1], message[1 + LENGTH_BYTES :]
