"""Serve a read-only dashboard during the demo, in a thread of the orchestrator, on a free loopback port."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from conquiet.cli.errors import CommandError
from conquiet.core.extras import require_extra

_START_S: Final = 30.0


@contextmanager
def serve_dashboard(redis_url: str) -> Iterator[str]:
    """Yield the address of a dashboard of this Redis."""
    require_extra("dashboard", "starlette", "jinja2", "uvicorn")
    from conquiet.dashboard.server import Listener, make_server, standalone

    listener = Listener(port=0)
    server = make_server(standalone(listener, redis_url=redis_url), listener)
    socket = server.config.bind_socket()
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[socket])), name="conquiet-dashboard", daemon=True
    )
    thread.start()
    deadline = time.monotonic() + _START_S
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise CommandError("the dashboard did not start", fix="run the demo without --dashboard")
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(_START_S)
