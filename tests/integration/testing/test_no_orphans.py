"""No server, no helper process and no folder outlives its owner, for any kind of death."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conquiet.testing import RedisServer, ServerStartError, wait_until
from conquiet.testing.server_supervisor import parents_from_proc

OWNER = """
import json, os, sys, threading
from conquiet.testing import MySQLServer, PostgresServer, RabbitMQServer, RedisServer

kinds = {"redis": RedisServer, "mysql": MySQLServer, "postgres": PostgresServer, "rabbitmq": RabbitMQServer}
servers = {name: kinds[name]() for name in sys.argv[2:]}
threads = [threading.Thread(target=server.start) for server in servers.values()]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
forked = os.fork() if sys.argv[1] == "fork" else None
if forked != 0:
    facts = {name: [str(s.folder), s.pid] for name, s in servers.items()}
    print(json.dumps({"servers": facts, "forked": forked}), flush=True)
sys.stdin.read()
"""


def start_owner(*arguments: str) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())


def users_of(folder: str) -> list[int]:
    """Processes that have the folder in their command line or environment, or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            texts = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if folder.encode() in texts or str((entry / "cwd").readlink()).startswith(folder):
                found.append(int(entry.name))
    return found


def end(owner: "subprocess.Popen[str]") -> None:
    owner.kill()
    owner.communicate()


def assert_all_gone(facts: dict[str, Any]) -> None:
    folders = [folder for folder, _ in facts["servers"].values()]

    def leftovers() -> list[str]:
        return [f"{folder}: {users_of(folder)}" for folder in folders if users_of(folder) or Path(folder).exists()]

    wait_until(lambda: not leftovers(), message=lambda: f"all gone, but {leftovers()}")


def test_sigkill_of_the_owner_leaves_nothing_of_any_server_behind() -> None:
    """RabbitMQ is the hard one: its epmd makes itself a daemon, out of reach of any process group."""
    owner, facts = start_owner("plain", "redis", "mysql", "postgres", "rabbitmq")
    assert all(users_of(folder) for folder, _ in facts["servers"].values())

    end(owner)

    assert_all_gone(facts)


def test_a_forked_child_of_the_owner_keeps_no_server_alive() -> None:
    """The child holds a copy of the owner's socket, so the socket alone would never end."""
    owner, facts = start_owner("fork", "redis")
    try:
        end_of_owner_only(owner)

        assert_all_gone(facts)
    finally:
        os.kill(facts["forked"], signal.SIGKILL)
        end(owner)


def end_of_owner_only(owner: "subprocess.Popen[str]") -> None:
    owner.kill()
    owner.wait()


def test_an_owner_that_simply_ends_leaves_nothing_behind_either() -> None:
    owner, facts = start_owner("plain", "redis")

    owner.communicate(input="")

    assert_all_gone(facts)


def supervisor_of(server: RedisServer) -> int:
    return parents_from_proc()[server.pid][0]


def test_ctrl_c_reaches_neither_supervisor_nor_server(private_redis: Callable[..., RedisServer]) -> None:
    """The tests' own teardown still wants to talk to the server."""
    server = private_redis()

    os.kill(supervisor_of(server), signal.SIGINT)

    assert os.getsid(server.pid) != os.getsid(0)
    assert os.getsid(supervisor_of(server)) != os.getsid(0)
    assert server.call("PING") == b"PONG"


def test_sigterm_of_the_supervisor_cleans_up() -> None:
    server = RedisServer().start()
    folder = server.folder

    os.kill(supervisor_of(server), signal.SIGTERM)

    wait_until(lambda: not folder.exists() and not users_of(str(folder)), message="cleaned up")
    server.stop()


def test_sigkill_of_the_supervisor_takes_the_server_with_it() -> None:
    """Only the folder stays, and that is the harmless leftover of the two."""
    server = RedisServer().start()
    folder = server.folder

    os.kill(supervisor_of(server), signal.SIGKILL)

    wait_until(lambda: not users_of(str(folder)), message="the server died too")
    with pytest.raises(ServerStartError, match="supervisor process is gone"):
        server.pause()
    server.stop()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink()
    folder.rmdir()


def test_no_descriptor_of_the_owner_leaks_into_the_server(private_redis: Callable[..., RedisServer]) -> None:
    with Path(__file__).open() as mine:
        os.set_inheritable(mine.fileno(), True)  # noqa: FBT003 - its only form
        server = private_redis()

    for pid in (server.pid, supervisor_of(server)):
        targets = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        assert __file__ not in targets
