"""Promises of every private server, shown on Redis because it is the fastest to start."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.testing import (
    RedisServer,
    ServerStartError,
    ServerStateError,
    ServerStatus,
    ServerUnavailableError,
    free_port,
    process,
    wait_until,
)

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "server"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return make


def test_two_servers_live_side_by_side_and_share_nothing(private_redis: StartRedis) -> None:
    one, two = private_redis(), private_redis()

    one.call("SET", "who", "one")

    assert two.call("GET", "who") is None
    assert one.port != two.port
    assert one.folder != two.folder


def test_the_data_of_a_server_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="cq-") as place:  # a short path: servers put sockets into it
        monkeypatch.setenv("CONQUIET_TEST_DATA_DIR", place)
        with RedisServer() as server:
            assert server.folder.parent == Path(place).resolve()


def test_stop_ends_the_process_removes_the_folder_and_may_be_repeated() -> None:
    server = RedisServer().start()
    folder, pid = server.folder, server.pid

    server.stop()
    server.stop()

    assert server.status is ServerStatus.STOPPED
    assert not server.is_running
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_log_can_still_be_read_after_the_stop() -> None:
    with RedisServer() as server:
        pass

    assert "Ready to accept connections" in server.log_tail()
    assert len(server.log_tail().splitlines()) <= 40


def test_a_server_that_never_started_can_be_stopped_and_has_no_log() -> None:
    server = RedisServer()

    server.stop()

    assert server.log_tail() == ""


def test_a_start_that_fails_shows_the_servers_own_words_and_leaves_nothing() -> None:
    server = RedisServer(extra_args=("--no-such-option", "1"))

    with pytest.raises(ServerStartError, match="exited with code 1") as caught:
        server.start()

    assert "no-such-option" in caught.value.log
    assert caught.value.log in str(caught.value)
    assert server.status is ServerStatus.STOPPED
    assert not server.folder.exists()


def test_a_server_that_never_answers_is_given_up_at_the_deadline(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = RedisServer._probe

    def probe_and_lose_patience(server: RedisServer) -> str:
        if "I am slow" in server.log_tail():
            monkeypatch.setattr(RedisServer, "start_timeout_s", 0.0)
        return probe(server)

    monkeypatch.setattr(RedisServer, "_probe", probe_and_lose_patience)

    with pytest.raises(ServerStartError, match=r"gave no answer within .*\n.*\nI am slow"):
        RedisServer(binary=script("echo I am slow; exec sleep 60")).start()


def test_a_program_that_cannot_be_executed_is_a_clear_start_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    with pytest.raises(ServerStartError, match="No such file"):
        RedisServer(binary=broken).start()


def test_a_missing_program_is_noticed_before_anything_is_started() -> None:
    with pytest.raises(ServerUnavailableError, match="not an executable program"):
        RedisServer(binary="/nowhere/redis-server")


def test_a_port_that_was_taken_meanwhile_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may bind the free port before the server starts."""
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        ports = iter([squatter.getsockname()[1], free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))

        with RedisServer() as server:
            assert server.call("PING") == b"PONG"
            assert server.port != squatter.getsockname()[1]


def test_another_server_on_the_same_port_is_not_taken_for_ours(
    private_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would reply to PING as well."""
    neighbour = private_redis()
    monkeypatch.setattr(process, "free_port", lambda: neighbour.port)

    with pytest.raises(ServerStartError, match="already in use"):
        RedisServer().start()


def test_a_crashed_server_is_not_running_and_ensure_running_brings_it_back(private_redis: StartRedis) -> None:
    server = private_redis()
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.is_running, message="the crash was noticed")

    server.ensure_running()

    assert server.call("PING") == b"PONG"


def test_ensure_running_resumes_a_paused_server_and_leaves_a_running_one_alone(private_redis: StartRedis) -> None:
    server = private_redis()
    pid = server.pid
    server.pause()

    server.ensure_running()
    server.ensure_running()

    assert server.is_running
    assert server.pid == pid


def test_a_call_outlasts_a_server_that_stands_still_for_seconds(private_redis: StartRedis) -> None:
    """The shared server is flushed before each test, and must not fail it for a moment of a busy machine."""
    server = private_redis()
    server.call("SET", "left", "over")
    server.pause()
    waker = threading.Timer(3.0, server.resume)
    waker.start()

    server.flush()

    waker.join()
    assert server.call("EXISTS", "left") == 0


def test_a_paused_server_can_be_killed_restarted_and_stopped(private_redis: StartRedis) -> None:
    server = private_redis()
    server.pause()
    server.restart()
    server.pause()
    server.kill()
    server.restart()
    server.pause()

    server.stop()

    assert server.status is ServerStatus.STOPPED


def test_each_call_out_of_order_is_refused_and_names_the_state(private_redis: StartRedis) -> None:
    new = RedisServer()
    for refused in (new.kill, new.pause, new.resume, new.restart):
        with pytest.raises(ServerStateError, match="that is new"):
            refused()
    with pytest.raises(ServerStateError, match="was not started"):
        _ = new.pid

    running = private_redis()
    with pytest.raises(ServerStateError, match="that is running"):
        running.start()
    with pytest.raises(ServerStateError, match="cannot resume"):
        running.resume()

    running.stop()
    with pytest.raises(ServerStateError, match="that is stopped"):
        running.start()


def test_servers_can_be_started_by_threads_that_end(private_redis: StartRedis) -> None:
    """A death signal set by the kernel would fire when the *thread* ends, and take the server with it."""
    started: list[RedisServer] = []
    threads = [threading.Thread(target=lambda: started.append(private_redis())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [server.call("PING") for server in started] == [b"PONG"] * 3


def test_a_forked_child_cannot_stop_its_parents_server(private_redis: StartRedis) -> None:
    server = private_redis()
    supervisor = server._client()
    supervisor._owner = -1  # as os.getpid() would differ in a forked child

    supervisor.end()

    supervisor._owner = os.getpid()
    assert server.call("PING") == b"PONG"


def test_repr_shows_status_port_and_version(private_redis: StartRedis) -> None:
    server = private_redis()

    assert repr(server) == f"<RedisServer running port={server.port} version={server.version}>"
