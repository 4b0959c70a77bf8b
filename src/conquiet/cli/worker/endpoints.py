"""Liveness, readiness and metrics over HTTP, for probes and for Prometheus.

/livez     200 as long as the supervisor goes round
/readyz    200 while every process does its work, else 503; the body says which one does not
/metrics   of all processes together
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from conquiet.cli.failures import CommandError

Answer = tuple[int, str, bytes]


class Endpoints:
    """One HTTP port that answers some paths.

    Args:
        host: Address to listen on.
        port: Port; 0 takes a free one.
        paths: What each path answers: status, content type, body.
    """

    def __init__(self, host: str, port: int, paths: dict[str, Callable[[], Answer]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = paths.get(self.path.partition("?")[0])
                status, kind, body = answer() if answer else (404, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Probes come every few seconds: nothing to write home about."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise CommandError(
                f"port {port} on {host} cannot be used ({error.strerror})", fix="take another port, or stop who has it"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="conquiet-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def as_json(status: int, body: dict[str, Any]) -> Answer:
    """Return a JSON answer."""
    return status, "application/json", json.dumps(body).encode() + b"\n"


def metrics_of(folder: str) -> Answer:
    """Return the metrics of all processes that write into ``folder``."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
