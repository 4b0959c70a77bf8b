"""``conquiet new`` and ``conquiet dev``, as a new user calls them: no server, no URL."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conquiet.testing import free_port, wait_until

Environment = Callable[..., dict[str, str]]


@pytest.fixture
def bare(clean_environment: Environment, command: Path) -> dict[str, str]:
    """An environment without servers, in which ``conquiet`` is found."""
    return clean_environment(PYTHONDONTWRITEBYTECODE="1", PATH=f"{command.parent}:{os.environ['PATH']}")


def made(command: Path, folder: Path, kind: str, environment: dict[str, str]) -> Path:
    done = subprocess.run(
        [command, "new", "shop", f"--{kind}"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "conquiet dev shop" in done.stdout
    return folder / "shop"


@pytest.mark.parametrize("kind", ["plain", "fastapi", "flask", "django"])
def test_a_new_project_passes_its_own_tests(kind: str, command: Path, tmp_path: Path, bare: dict[str, str]) -> None:
    project = made(command, tmp_path, kind, bare)
    words = ["manage.py", "test"] if kind == "django" else ["-m", "pytest", "-q", "-p", "no:cacheprovider"]

    done = subprocess.run(
        [sys.executable, *words], cwd=project, env=bare, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout or "Ran 1 test" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["shop", "--flask", "--django"], "--flask and --django cannot be given together"),
        (["My-Shop"], "'My-Shop' cannot be the name of a project"),
        (["json"], "a project named 'json' would hide the module of that name"),
        (["taken"], "taken exists already and is not empty"),
    ],
)
def test_a_project_that_cannot_be_made_is_one_sentence(
    words: list[str], sentence: str, command: Path, tmp_path: Path, bare: dict[str, str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")

    done = subprocess.run(
        [command, "new", *words], cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert sentence in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


@contextmanager
def developing(command: Path, project: Path, environment: dict[str, str], *words: str) -> Iterator[tuple[int, Path]]:
    """Run ``conquiet dev`` until the block ends; it must end well on SIGTERM."""
    log = project.parent / "dev.log"
    with log.open("w") as output:
        process = subprocess.Popen([command, "dev", *words], cwd=project, env=environment, stdout=output, stderr=output)
        try:
            wait_until(
                lambda: process.poll() is not None or "processes ready" in log.read_text(),
                timeout_s=120,
                message=log.read_text,
            )
            yield process.pid, log
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait(60)


def worker_pid(parent: int) -> int | None:
    """Return the process in which the handlers of a ``conquiet dev`` run."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"conquiet.cli.worker.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (OSError, json.JSONDecodeError):
        return None  # not up yet


def test_dev_runs_everything_without_servers_and_a_killed_worker_loses_nothing(
    command: Path, tmp_path: Path, bare: dict[str, str]
) -> None:
    project = made(command, tmp_path, "fastapi", bare)
    port = free_port()
    web = f"http://127.0.0.1:{port}"

    with developing(command, project, bare, "shop:app", "--web", "shop:api", "--port", str(port)) as (pid, log):
        wait_until(lambda: call(f"{web}/orders", {"order_id": "0", "cents": 1}), timeout_s=120, message=log.read_text)
        first = wait_until(lambda: worker_pid(pid))
        for number in range(1, 20):
            assert call(f"{web}/orders", {"order_id": f"{number}", "cents": 1}), log.read_text()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(call(f"{web}/ledger") or ()) == 20, timeout_s=120, message=log.read_text)
        booked = call(f"{web}/ledger")

    assert booked == {f"{number}": 1 for number in range(20)}
    assert (project / ".conquiet" / "dev.db").exists()


def test_dev_restarts_the_handlers_when_a_file_changes(command: Path, tmp_path: Path, bare: dict[str, str]) -> None:
    project = made(command, tmp_path, "plain", bare)

    with developing(command, project, bare, "shop:app") as (_, log):
        source = project / "shop.py"
        source.write_text(source.read_text() + "\nprint('changed', flush=True)\n")
        wait_until(lambda: "changed" in log.read_text().splitlines(), timeout_s=120, message=log.read_text)

    assert "shop.py changed; restarting" in log.read_text()


def test_dev_with_a_mistake_in_the_module_says_so(command: Path, tmp_path: Path, bare: dict[str, str]) -> None:
    (tmp_path / "shop.py").write_text("from conquiet import App\napp = App('shop', redis=7)\n")

    done = subprocess.run(
        [command, "dev", "shop:nothing"],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 2
    assert "module 'shop'" in done.stderr
