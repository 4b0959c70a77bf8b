"""The installed command in a subprocess, with an environment that holds nothing of the developer's own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from redis import Redis

Run = Callable[..., "subprocess.CompletedProcess[str]"]

CONQUIET = Path(sys.executable).with_name("conquiet")


@pytest.fixture(autouse=True, scope="module")  # as wide as the widest fixture that starts one
def without_coverage_in_subprocesses() -> Iterator[None]:
    """Start commands unmeasured: coverage adds 65 % to their time, and many of them are killed before they save it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            patch.delenv(name, raising=False)
        yield


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONQUIET_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        kept.pop(name, None)
    kept |= {name: value for name, value in os.environ.items() if name == "CONQUIET_SERVERS_DIR"}
    return kept | more


@pytest.fixture
def command() -> Path:
    """The installed console script."""
    assert CONQUIET.exists(), "the package is not installed: run make"
    return CONQUIET


@pytest.fixture
def clean_environment() -> Callable[..., dict[str, str]]:
    return environment


@pytest.fixture
def run(command: Path, tmp_path: Path) -> Run:
    """``run("inspect", "--json", env={...}, stdin="…")`` in an empty folder."""

    def start(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [command, *words],
            input=stdin,
            env=environment(**(env or {})),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return start


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same in this process: for variants, where starting Python each time would prove nothing more."""
    from conquiet.cli import main

    def call(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        with monkeypatch.context() as patch:
            for name in os.environ.keys() - environment().keys():
                patch.delenv(name)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.delenv("CONQUIET_DEBUG", raising=False)
            patch.chdir(tmp_path)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.setattr(sys, "argv", ["conquiet", *words])
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr()
        code = ended.value.code
        return subprocess.CompletedProcess(words, code if isinstance(code, int) else 0, said.out, said.err)

    return call


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def declare(amqp_url: str) -> Callable[..., None]:
    def make(queue: str, **arguments: Any) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        connection.close()

    return make


@pytest.fixture
def conquiet(run: Run, redis_url: str) -> Run:
    """The installed command with the Redis of the test in the environment."""

    def start(*words: str, stdin: str = "") -> Any:
        return run(*words, stdin=stdin, env={"CONQUIET_REDIS_URL": redis_url})

    return start


@pytest.fixture
def quick(invoke: Run, redis_url: str) -> Run:
    """The same without a separate process."""

    def call(*words: str, stdin: str = "") -> Any:
        return invoke(*words, stdin=stdin, env={"CONQUIET_REDIS_URL": redis_url})

    return call
