"""A package index on this machine: wheels of a folder, served as PyPI serves them.

    with serve(folder) as url:
        pip install --index-url URL conquiet

``fill`` downloads what a wheel needs. Each file's link has its digest, so that pip checks what it gets.
"""

import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote


def fill(folder: Path, requirement: str) -> None:
    """Download wheels of a requirement and of all that it needs, from where pip is configured to look."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--prefer-binary"]
    subprocess.run([*command, "--dest", str(folder), requirement], check=True)


def project_of(filename: str) -> str:
    """Return the normal name of the project that a wheel or sdist belongs to."""
    name = filename.split("-", maxsplit=1)[0] if filename.endswith(".whl") else filename.rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def page_of(folder: Path, project: str) -> str | None:
    """Return the page of a project with a link to each of its files; None if there is none."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and project_of(path.name) == project)
    links = [
        f'<a href="../../files/{quote(path.name)}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">'
        f"{escape(path.name)}</a>"
        for path in files
    ]
    return "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>" if links else None


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on the loopback address; yield the URL for ``--index-url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, _, name = unquote(self.path).strip("/").partition("/")
            body: bytes | None = None
            if kind == "simple":
                page = page_of(folder, name)
                body = None if page is None else page.encode()
            elif kind == "files" and (folder / Path(name).name).is_file():
                body = (folder / Path(name).name).read_bytes()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if kind == "simple" else "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
