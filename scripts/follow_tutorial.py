"""Type the commands of docs/tutorial.md in a fresh environment, one after the other, and compare what happens.

    python scripts/follow_tutorial.py

Every line that begins with ``$`` in a console block is typed as it stands, in order, in a new folder. Replaced is only
what the page itself leaves open: the name ``conquiet`` in ``pip install`` (by a wheel of this checkout), the URL that
``conquiet dev`` prints, the process id of the worker, the id of the dead letter, and the database of the last step.
Programs that run until they are stopped are left running, as in a terminal of their own. Prints the seconds of each
command; fails if an order is lost or doubled.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
LIMIT_S = 240.0
DASHBOARD = "http://127.0.0.1:8321/"
ENDLESS = ("conquiet dev", "conquiet dashboard", "conquiet worker")


def commands() -> list[str]:
    """Return the commands of the page, in order."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


class Terminal:
    """A reader's shell: a folder, an environment, and programs that are still running.

    Args:
        folder: Where the reader begins.
        wheel: Installed in place of the name on the index.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._wheel = wheel
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("CONQUIET", "PYTHON"))}
        self._environment = clean
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._dead_letter = ""

    def type(self, command: str) -> None:
        """Run one command of the page and check the page's statement about it."""
        words = shlex.split(command, comments=True)
        if command.startswith("cd "):
            self._folder /= words[1]
        elif command.startswith(". "):
            path = f"{self._folder / '.venv' / 'bin'}:{self._environment['PATH']}"
            self._environment |= {"PATH": path, "VIRTUAL_ENV": str(self._folder / ".venv")}
        elif command.startswith("export CONQUIET_REDIS_URL="):
            url = self._wait("its URL", lambda: re.search(r"at (redis://\S+?),", self._log("conquiet dev")))
            self._environment["CONQUIET_REDIS_URL"] = url[1]
        elif command.startswith("export CONQUIET_DB_URL="):
            self._environment["CONQUIET_DB_URL"] = f"sqlite:///{self._folder / '.conquiet' / 'dev.db'}"
        elif command.startswith(ENDLESS):
            self._start(command)
        else:
            self._run(command)

    def _run(self, command: str) -> None:
        if command.startswith("pip install"):
            command = command.replace("'conquiet[", f"'{self._wheel}[")
        if command.startswith("kill -9"):
            self._wait("a booking", lambda: self._bookings()[0] > 50)  # noqa: PLR2004 - in the midst of 500
            (pid,) = set(re.findall(r"INFO \[(\d+)\] conquiet\.runtime", self._log("conquiet dev")))
            os.kill(int(pid), signal.SIGKILL)
            return
        if command.startswith("conquiet dead-letters show"):
            command = command.replace("ID", self._dead_letter)
        if "COUNT(DISTINCT" in command:
            self._wait("all bookings", lambda: self._bookings() == (501, 501))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        self._check(command, done.stdout)

    def _check(self, command: str, output: str) -> None:
        """Compare the output of a command with the page's statement about it."""
        if "COUNT(DISTINCT" in command and output.strip() != "(501, 501)":
            raise SystemExit(f"an order is lost or doubled: {output}")
        if '"order_id": "1"' in command:
            self._wait("the receipt", lambda: "receipt for 1\n" in self._log("conquiet dev"))
        if "dead-letters list" in command:
            if "order.paid" not in output:
                raise SystemExit(f"no dead letter is shown:\n{output}")
            self._dead_letter = output.splitlines()[1].split()[0]
        if "dead-letters show" in command and ("$.cents" not in output or "many" in output):
            raise SystemExit(f"the dead letter does not name the field, or shows its value:\n{output}")

    def _bookings(self) -> tuple[int, int]:
        import sqlite3

        connection = sqlite3.connect(self._folder / ".conquiet" / "dev.db", timeout=60)
        try:
            return tuple(connection.execute("SELECT COUNT(*), COUNT(DISTINCT order_id) FROM ledger").fetchone())
        finally:
            connection.close()

    def _start(self, command: str) -> None:
        name = " ".join(command.split()[:2])
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command), cwd=self._folder, env=self._environment, stdout=output, stderr=output
            )
        self._running[name] = (process, log)
        if name == "conquiet dashboard":
            self._wait("the dashboard", _dashboard_answers)
        else:
            self._wait("a ready worker", lambda: "1 processes ready" in self._log(name))

    def _log(self, name: str) -> str:
        return self._running[name][1].read_text(encoding="utf-8")

    def _wait(self, what: str, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while not (answer := found()):
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text() for _, log in self._running.values())
                raise SystemExit(f"waited in vain for {what}:\n{logs}")
            time.sleep(0.05)
        return answer

    def close(self) -> None:
        """End what still runs, the newest first."""
        for process, _ in reversed(self._running.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _dashboard_answers() -> bool:
    try:
        with urllib.request.urlopen(DASHBOARD, timeout=10) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - OK
    except OSError:
        return False


def main() -> int:
    """Follow the page; return the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch, "wheels")
        build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels))
        subprocess.run([*build, str(ROOT)], check=True)
        (wheel,) = wheels.glob("*.whl")
        folder = Path(scratch, "reader")
        folder.mkdir()
        terminal = Terminal(folder, wheel)
        began = time.monotonic()
        try:
            for command in commands():
                before = time.monotonic()
                terminal.type(command)
                print(f"{time.monotonic() - before:6.1f} s  $ {command[:100]}", flush=True)
        finally:
            terminal.close()
        print(f"the tutorial took {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
