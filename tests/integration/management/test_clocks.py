"""The doctor compares the clocks of the server, its replicas and this host."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from redis import Redis

from conquiet.management import RedisAdmin
from conquiet.management.doctor import Severity
from conquiet.management.doctor.clocks import ClockReading, check_clocks, read_clocks
from conquiet.management.doctor.redis import examine_redis
from conquiet.testing import RedisServer, wait_until


def replicated(server: RedisAdmin) -> bool:
    return "state=online" in server.info("replication").get("slave0", "")


def test_the_clocks_of_server_replica_and_host_are_read(private_redis: Callable[..., RedisServer]) -> None:
    main = private_redis(password="geheim")
    replica = private_redis(
        password="geheim", extra_args=("--replicaof", "127.0.0.1", str(main.port), "--masterauth", "geheim")
    )
    with Redis.from_url(main.url) as client, RedisAdmin(client) as server:
        wait_until(lambda: replicated(server))

        clocks = read_clocks(server, server.info())

        assert [clock.name for clock in clocks] == ["the server", f"replica 127.0.0.1:{replica.port}"]
        assert all(clock.offset_s is not None and abs(clock.offset_s) - clock.doubt_s < 1 for clock in clocks)
        assert "redis.clocks" not in {finding.check for finding in examine_redis(server)}


def test_a_replica_that_cannot_be_reached_is_a_note_and_no_fault(server: RedisAdmin) -> None:
    info = {"slave0": "ip=127.0.0.1,port=1,state=online,offset=1,lag=0", "slave_repl_offset": "1"}

    clocks = read_clocks(server, info)

    assert clocks[1] == ClockReading("replica 127.0.0.1:1", None)
    assert [one.severity for one in check_clocks(clocks, 1.0)] == [Severity.NOTE]


@pytest.mark.parametrize(
    ("shift_s", "words"), [(5.0, "5.0 s behind the clock of this host"), (-5.0, "5.0 s ahead of the clock")]
)
def test_a_host_with_another_time_is_found(
    server: RedisAdmin, monkeypatch: pytest.MonkeyPatch, shift_s: float, words: str
) -> None:
    shifted = SimpleNamespace(time=lambda: time.time() + shift_s, monotonic=time.monotonic)
    monkeypatch.setattr("conquiet.management.doctor.clocks.time", shifted)

    (finding,) = [one for one in examine_redis(server) if one.check == "redis.clocks"]

    assert finding.severity is Severity.WARNING
    assert words in finding.what


def test_a_replica_that_is_behind_is_warned_of_because_ids_repeat() -> None:
    def found(server_s: float, replica_s: float, doubt_s: float = 0.0) -> list[str]:
        clocks = (ClockReading("the server", server_s), ClockReading("replica r:1", replica_s, doubt_s))
        return [one.why for one in check_clocks(clocks, 1.0) if one.severity is Severity.WARNING]

    assert found(0.0, -0.9) == []
    assert found(0.0, -1.5, doubt_s=0.6) == [], "the answer took too long to say"
    (why,) = found(0.0, -4.0)
    assert "repeats ids" in why
    assert len(found(0.9, -0.9)) == 1, "both are near to this host, and far from each other"
    assert len(found(3.0, 3.0)) == 1, "the host alone is off"
