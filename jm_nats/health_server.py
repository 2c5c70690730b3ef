"""``/livez``, ``/readyz`` and ``/health`` over HTTP, from a thread of its own: it answers also while a handler blocks
the event loop, which is when somebody wants to know.

The standard library's server is enough for a probe every few seconds. What it lacks is patience's end: one that sends
its request byte by byte is cut off after ``REQUEST_S``, and more than ``REQUESTS_MAX`` at once are not taken.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from jm_core import limits, wire
from jm_core.errors import InvalidSettingError
from jm_core.health import GroupReport, Health, overall
from jm_nats.liveness import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jm_nats.liveness import Reporter

log = logging.getLogger("jobmaster.health")

REQUEST_S: Final = 5.0
REQUESTS_MAX: Final = 32
POLL_S: Final = 0.2
CONTENT_TYPE: Final = "application/json"


class HealthView(Struct, frozen=True):
    """The body of ``/health``."""

    status: Health
    live: bool
    ready: bool
    event_loop_age_s: float
    groups: list[GroupReport]


class HealthServer:
    """Serves until closed. ``with`` it around the event loop's work, and run ``tick`` in that loop.

    Args:
        boards: of the groups in this process.
        port: 0 takes a free one, see ``port``.
        redact: applied to what is answered: the text of an unknown error may hold anything.

    Raises:
        InvalidSettingError: the address cannot be used.
    """

    def __init__(
        self,
        boards: Sequence[Reporter],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        stall_limit_s: float = limits.STALL_LIMIT_S,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._liveness = Liveness(boards, stall_limit_s=stall_limit_s)
        self._redact = redact
        try:
            self._server = _Server(host, port, self._answer)
        except (OSError, OverflowError) as error:
            raise InvalidSettingError(f"the health port {host}:{port} cannot be used: {error}") from None
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_S}, name="jm-health", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("health is served", extra={"host": self.host, "port": self.port})
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    async def tick(self) -> None:
        """Show that the event loop turns, until cancelled."""
        await self._liveness.tick()

    # Called in the server's threads.

    def _answer(self, path: str) -> tuple[HTTPStatus, bytes] | None:
        groups, stuck_s, live, ready = self._liveness.look()
        match path:
            case "/livez":
                return self._encoded(live, ok=live.ok)
            case "/readyz":
                return self._encoded(ready, ok=ready.ok)
            case "/health":
                status = overall(groups) if live.ok else Health.UNHEALTHY
                view = HealthView(status, live.ok, ready.ok, round(stuck_s, 1), groups)
                return self._encoded(view, ok=status is not Health.UNHEALTHY)
        return None

    def _encoded(self, body: Struct, *, ok: bool) -> tuple[HTTPStatus, bytes]:
        text = self._redact(wire.encode(body).decode())
        return (HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE), text.encode() + b"\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = REQUESTS_MAX

    def __init__(self, host: str, port: int, answer: Callable[[str], tuple[HTTPStatus, bytes] | None]) -> None:
        self.answer = answer
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, float] = {}  # connections, and when each of them has had its time
        self._open_lock = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without ``HTTPServer``'s look-up of our own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            is_full = len(self._open) >= REQUESTS_MAX
            if not is_full:
                self._open[request] = time.monotonic() + REQUEST_S
        if is_full:
            super().shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """At every poll: cut off who takes too long. ``shutdown`` and not ``close``: its thread still holds it."""
        now_s = time.monotonic()
        with self._open_lock:
            overdue = [request for request, until_s in self._open.items() if now_s > until_s]
        for request in overdue:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """Whoever hung up has no use for our traceback on stderr."""
        log.debug("health request failed", exc_info=True)  # noqa: LOG014 - called from an exception handler


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_S  # of one read or write
    server_version = "jobmaster"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self.server.answer(self.path.partition("?")[0])
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, b'{"error":"ask for /livez, /readyz or /health"}\n')
        else:
            self._send(*answer)

    do_HEAD = do_GET  # noqa: N815 - the base class's

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, b'{"error":"only GET and HEAD"}\n', allow="GET, HEAD")

    def __getattr__(self, name: str) -> Any:
        """Every other method, known or not."""
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _send(self, status: HTTPStatus, body: bytes, *, allow: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if allow:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        log.debug("health request", extra={"request": format % args})
