"""Liveness, readiness and metrics over HTTP, for probes and for Prometheus.

/livez     200 while the supervisor loop runs
/readyz    200 while every process is ready, else 503; the body names the others
/metrics   of all processes together

Clients may open connections and send nothing. So their number is bounded: a further connection closes the oldest. A
probe, which takes milliseconds, is always accepted.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from conquiet.cli.errors import CommandError
from conquiet.core.log import FactLogger

Response = tuple[int, str, bytes]
Paths = dict[str, Callable[[], Response]]

CONNECTIONS: Final = 64
"""Maximum number of connections per port."""

MAX_AGE_S: Final = 10.0
"""Maximum age of a connection."""

_IDLE_TIMEOUT_S: Final = 5.0
_log = FactLogger("conquiet.worker")


class BoundedServer(ThreadingHTTPServer):
    """Runs one thread per connection, at most ``CONNECTIONS`` of them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._opened: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Respond in a separate thread; close the oldest connection if there are too many."""
        with self._lock:
            while len(self._opened) >= CONNECTIONS:
                self._abort(next(iter(self._opened)))
            self._opened[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started: close the connection, keep the port
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Close old connections: a byte now and then keeps one from its idle timeout."""
        oldest_s = time.monotonic() - MAX_AGE_S
        with self._lock:
            for request in [one for one, opened_s in self._opened.items() if opened_s < oldest_s]:
                self._abort(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._opened.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log the class of the error. A client that hangs up is not an error."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            _log.failure(logging.ERROR, "HTTP request failed", error)

    def _abort(self, request: socket.socket) -> None:
        """Shut the connection down; its thread then reads the end of input and closes it."""
        self._opened.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class Endpoints:
    """One HTTP port that serves some paths.

    Args:
        host: Address to listen on.
        port: Port; 0 takes a free one.
        paths: The response of each path: status, content type, body.
    """

    def __init__(self, host: str, port: int, paths: Paths) -> None:
        class RequestHandler(BaseHTTPRequestHandler):
            timeout = _IDLE_TIMEOUT_S

            def do_GET(self) -> None:
                respond = paths.get(self.path.partition("?")[0])
                status, kind, body = respond() if respond else (404, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Log nothing: probes come every few seconds."""

        try:
            self._server = BoundedServer((host, port), RequestHandler)
        except OSError as error:
            raise CommandError(
                f"port {port} on {host} cannot be used ({error.strerror})",
                fix="use another port, or stop the process that uses this one",
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="conquiet-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def json_response(status: int, body: dict[str, Any]) -> Response:
    """Return a JSON response."""
    return status, "application/json", json.dumps(body).encode() + b"\n"


def metrics_response(folder: str) -> Response:
    """Return the metrics of all processes that write into ``folder``."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
