"""Measure the way of a new user: from a wheel to an exactly-once endpoint that was killed, without any server.

    python scripts/five_minutes.py [fastapi] [flask] [django]

For each framework, in a virtual environment of its own: install the wheel, ``conquiet new``, run the project's tests,
``conquiet dev``, send orders by HTTP, kill the worker with SIGKILL while they are booked, and compare the ledger. It
prints the seconds of each step and the lines of the user's code. It fails if an order is lost or doubled, above five
minutes, or above 60 lines. The wheel is built first, and that is not counted. Packages come from where pip is
configured to look.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
ORDERS: Final = 30
LIMIT_S: Final = 300.0
LIMIT_LINES: Final = 60
CODE: Final = {"shop.py", "jobs.py", "urls.py", "models.py", "worker.py"}
EXTRAS: Final = {
    "fastapi": ("redis,cli,embedded", ["fastapi", "uvicorn", "httpx", "pytest", "pytest-asyncio"]),
    "flask": ("redis,cli,embedded,flask", ["pytest", "pytest-asyncio"]),
    "django": ("redis,cli,embedded,django", []),
}
TESTS: Final = {"fastapi": ["-m", "pytest", "-q"], "flask": ["-m", "pytest", "-q"], "django": ["manage.py", "test"]}
DEV: Final = {
    "fastapi": ["shop:app", "--web", "shop:api"],
    "flask": ["shop:app", "--web", "shop:web"],
    "django": ["shop.worker:app", "--web", "manage.py"],
}


def environment() -> dict[str, str]:
    """Return the environment without anything that names a server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CONQUIET", "PYTHONPATH"))}


def run(words: list[Any], folder: Path) -> None:
    """Run a command; end the program with its output if it fails."""
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def wait_for(what: str, answer: Callable[[], Any], log: Path) -> Any:
    """Poll until the result is true."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := answer():
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited in vain for {what}:\n{log.read_text()}")


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return the reply of the endpoint; None while it has none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - of this machine
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - the same
            return json.load(response)
    except (urllib.error.URLError, OSError, json.JSONDecodeError):
        return None


def worker_of(parent: int) -> int | None:
    """Return the process in which handlers run."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"conquiet.cli.worker.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def killed_endpoint(kind: str, project: Path, command: Path) -> None:
    """Run the project, kill its worker while orders are booked, and compare the ledger."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    web, log = f"http://127.0.0.1:{port}", project.parent / "dev.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [command, "dev", *DEV[kind], "--port", str(port)],
            cwd=project, env=environment(), stdout=output, stderr=output,
        )  # fmt: skip
        try:
            wait_for("the endpoint", lambda: call(f"{web}/orders", {"order_id": "0", "cents": 1}), log)
            worker = wait_for("the worker", lambda: worker_of(process.pid), log)
            for number in range(1, ORDERS):
                if call(f"{web}/orders", {"order_id": f"{number}", "cents": 1}) is None:
                    raise SystemExit(f"order {number} was refused:\n{log.read_text()}")
                if number == ORDERS // 2:
                    os.kill(worker, signal.SIGKILL)
            wait_for("all orders", lambda: len(call(f"{web}/ledger") or ()) == ORDERS, log)
            booked = call(f"{web}/ledger")
            if booked != {f"{number}": 1 for number in range(ORDERS)}:
                raise SystemExit(f"not every order was booked once: {booked}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def measure(kind: str, wheel: Path) -> None:
    """Go the whole way once and print its steps."""
    steps: list[tuple[str, float]] = []
    began = time.monotonic()

    def step(name: str) -> None:
        steps.append((name, time.monotonic() - began - sum(took for _, took in steps)))

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run([sys.executable, "-m", "venv", home / "venv"], home)
        python, command = home / "venv" / "bin" / "python", home / "venv" / "bin" / "conquiet"
        extras, others = EXTRAS[kind]
        run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}[{extras}]", *others], home)
        step("install")
        run([command, "new", "shop", f"--{kind}"], home)
        project = home / "shop"
        step("new")
        run([python, *TESTS[kind]], project)
        step("tests")
        if kind == "django":
            run([python, "manage.py", "migrate", "--run-syncdb"], project)
            step("migrate")
        killed_endpoint(kind, project, command)
        step("dev, orders, kill -9, compare")
        files = [path for path in project.rglob("*.py") if path.name in CODE]
        lines = sum(bool(line.strip()) for path in files for line in path.read_text().splitlines())
    total_s = time.monotonic() - began
    shown = ", ".join(f"{name} {took:.0f} s" for name, took in steps)
    print(
        f"{kind}: {total_s:.0f} s in all ({shown}); {lines} lines of code; {ORDERS} orders, each booked once",
        flush=True,
    )
    if total_s > LIMIT_S or lines > LIMIT_LINES:
        raise SystemExit(f"{kind}: more than {LIMIT_S:.0f} s or {LIMIT_LINES} lines")


def main() -> None:
    """Measure the frameworks that are named; all of them if none is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*EXTRAS, []], help="frameworks; all if left out")
    kinds = parser.parse_args().kinds or list(EXTRAS)
    print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], ROOT)
        (wheel,) = Path(folder).glob("conquiet-*.whl")
        for kind in kinds:
            measure(kind, wheel)


if __name__ == "__main__":
    main()
