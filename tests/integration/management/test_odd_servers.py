"""Names that are not UTF-8, foreign keys near a stream, users with few rights: none of it hides a stream."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from conquiet.errors import NoSuchStreamError, QueueError
from conquiet.management import RedisAdmin, describe_stream, enqueue_all, list_streams
from conquiet.management.doctor.redis import RedisLimits, examine_redis
from conquiet.management.overview import require_group
from conquiet.testing import FaultProxy

CAFE = b"caf\xe9"
GROUP = b"g\xe9"


@pytest.fixture
def restricted(client: Redis, redis_url: str, key_prefix: str) -> Iterator[Callable[..., RedisAdmin]]:
    """``restricted("-memory")``: the server as a user sees it who may do everything but that."""
    name = f"{key_prefix}user".replace(":", "-")
    opened: list[Redis] = []

    def make(rule: str) -> RedisAdmin:
        client.acl_setuser(name, enabled=True, passwords="+geheim", keys="*", commands=["+@all", rule])
        opened.append(Redis.from_url(redis_url, username=name, password="geheim"))
        return RedisAdmin(opened[-1])

    yield make
    client.acl_deluser(name)
    for one in opened:
        one.close()


def fill(client: Redis, key: str | bytes, group: str | bytes = "billing", count: int = 3) -> None:
    for _ in range(count):
        client.xadd(key, {"data": "{}"})
    client.xgroup_create(key, group, "0")
    client.xreadgroup(group, "alice", {key: ">"}, count=1)  # type: ignore[arg-type]


# ---------------------------------------------------------------- users with few rights
def test_a_user_without_memory_usage_sees_the_streams(
    client: Redis, key_prefix: str, restricted: Callable[..., RedisAdmin]
) -> None:
    key = f"{key_prefix}orders"
    fill(client, key)

    with restricted("-memory") as server:
        (facts,) = list_streams(server, pattern=f"{key_prefix}*").streams

    assert (facts.key, facts.length, facts.memory_bytes, facts.dead_letters) == (key, 3, None, 0)


@pytest.mark.parametrize("forbidden", ["-xinfo", "-type", "-xpending", "-scan"])
def test_a_forbidden_command_is_an_error_and_no_empty_server(
    client: Redis, key_prefix: str, restricted: Callable[..., RedisAdmin], forbidden: str
) -> None:
    fill(client, f"{key_prefix}orders")

    with restricted(forbidden) as server, pytest.raises(QueueError, match="NOPERM"):
        list_streams(server, pattern=f"{key_prefix}*")


def test_a_lost_connection_is_an_error_and_no_empty_server(
    client: Redis, redis_url: str, key_prefix: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    fill(client, f"{key_prefix}orders")
    proxy = fault_proxy(redis_url)
    with Redis.from_url(proxy.url_for(redis_url)) as through, RedisAdmin(through) as server:
        server.now_ms()
        proxy.drop_next_reply(after_request_matching=b"XINFO")

        with pytest.raises(QueueError):
            list_streams(server, pattern=f"{key_prefix}*")


# ---------------------------------------------------------------- odd keys
def test_a_foreign_key_near_a_stream_does_not_hide_it(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    key = f"{key_prefix}orders"
    fill(client, key)
    for what in ("dead", "delayed", "paused"):
        client.set(f"{{{key}}}:{what}", "not the processor's")

    (facts,) = list_streams(server, pattern=key).streams

    assert (facts.length, facts.dead_letters, facts.delayed, facts.paused) == (3, None, None, None)


def test_names_that_are_not_utf_8_are_described_and_shown_escaped(
    server: RedisAdmin, client: Redis, key_prefix: str
) -> None:
    odd, plain = key_prefix.encode() + CAFE, f"{key_prefix}orders"
    fill(client, odd, GROUP)
    fill(client, plain)
    client.zadd(b"{%b}:delayed" % odd, {"later": 1})
    client.hset(b"{%b}:paused" % odd, b"\xff", "1")

    found = list_streams(server, pattern=f"{key_prefix}*")

    assert [one.key for one in found.streams] == [f"{key_prefix}caf\\xe9", plain]
    (group,) = found.streams[0].groups
    assert (group.name, group.pending, group.lag) == ("g\\xe9", 1, 2)
    assert (found.streams[0].delayed, found.streams[0].paused) == (1, ("\\xff",))
    assert "raw_key" not in str(found.as_dict())
    with pytest.raises(NoSuchStreamError, match="has no consumer group"):
        require_group(describe_stream(server, odd), "g\\xe9")  # the shown text is not its name


def test_the_doctor_examines_names_that_are_not_utf_8(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    odd = key_prefix.encode() + CAFE
    fill(client, odd, GROUP)

    found = examine_redis(server, RedisLimits(max_deliveries=1))

    (finding,) = [one for one in found if one.check == "redis.deliveries" and f"{key_prefix}caf" in one.what]
    assert "1 entries of" in finding.what


def test_a_batch_needs_no_right_to_transactions(
    client: Redis, key_prefix: str, restricted: Callable[..., RedisAdmin]
) -> None:
    """By MULTI, a user without it had the entries added one by one and got an error that none were."""
    key = f"{key_prefix}orders"

    with restricted("-multi") as server:
        added = [one for batch in enqueue_all(server, key, [{"n": n} for n in range(3)]) for one in batch]

    assert len(added) == client.xlen(key) == 3


def test_a_batch_that_its_user_may_not_send_adds_nothing(
    client: Redis, key_prefix: str, restricted: Callable[..., RedisAdmin]
) -> None:
    key = f"{key_prefix}orders"

    with restricted("-eval") as server, pytest.raises(QueueError) as caught:
        list(enqueue_all(server, key, [{"n": 1}]))

    assert not caught.value.in_doubt
    assert client.xlen(key) == 0
