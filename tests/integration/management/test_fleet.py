"""All streams in one reading: right numbers, few commands, odd names."""

from typing import Any

from redis import Redis

from conquiet.management.dead_letter_pages import stream_of_token, stream_token
from conquiet.management.fleet import StreamDirectory, flow, read_fleet
from conquiet.management.overview import describe_stream
from conquiet.management.redis_admin import RedisAdmin


def test_a_stream_is_described_as_the_server_has_it(client: Redis, server: RedisAdmin) -> None:
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    for _ in range(10):
        client.xadd("orders", {"data": "{}"})
    client.xreadgroup("billing", "ann", {"orders": ">"}, count=4)
    client.zadd("{orders}:delayed", {"x": 1})
    client.xadd("{orders}:dead", {"data": "{}"})
    client.hset("{orders}:paused", "mail", "1")

    (found,) = read_fleet(server, [b"orders"])

    assert (found.length, found.added, found.delayed, found.dead) == (10, 10, 1, 1)
    assert found.paused == ("mail",)
    assert (found.lag, found.pending) == (6, 4)
    assert found.oldest_age_s is not None
    (group,) = found.groups
    assert (group.name, group.consumers) == ("billing", 1)


def test_the_lag_is_never_above_the_length_of_the_stream(client: Redis, server: RedisAdmin) -> None:
    """The server still counts entries that were trimmed before a group has read them."""
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    for _ in range(10):
        client.xadd("orders", {"data": "{}"})
    client.xreadgroup("billing", "ann", {"orders": ">"}, count=1)
    client.xtrim("orders", maxlen=3, approximate=False)

    (found,) = read_fleet(server, [b"orders"])
    described = describe_stream(server, "orders")

    assert found.lag == 3
    assert described.groups[0].lag == 3


def test_rates_come_from_two_readings(client: Redis, server: RedisAdmin) -> None:
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    (before,) = read_fleet(server, [b"orders"])
    for _ in range(10):
        client.xadd("orders", {"data": "{}"})
    entries: Any = client.xreadgroup("billing", "ann", {"orders": ">"}, count=6)
    client.xack("orders", "billing", *[entry_id for entry_id, _ in entries[0][1]])
    (after,) = read_fleet(server, [b"orders"])

    seconds = max(0.001, (after.at_ms - before.at_ms) / 1000)
    rates = flow(before, after)
    if after.at_ms > before.at_ms:
        assert rates.per_s_in is not None
        assert abs(rates.per_s_in * seconds - 10) < 0.01
        assert rates.per_s_out is not None
        assert abs(rates.per_s_out * seconds - 6) < 0.01
    assert flow(after, after).per_s_in is None


def test_missing_keys_and_keys_of_other_types_are_left_out(client: Redis, server: RedisAdmin) -> None:
    client.set("text", "x")
    client.xadd("orders", {"data": "{}"})

    assert [one.key for one in read_fleet(server, [b"gone", b"orders", b"text"])] == ["orders"]


def test_the_directory_finds_streams_of_users_only(client: Redis, server: RedisAdmin) -> None:
    for name in ("orders", b"caf\xe9", "{orders}:dead", "{orders}:wake", "conquiet:audit"):
        client.xadd(name, {"data": "{}"})
    client.set("text", "x")
    directory = StreamDirectory()

    directory.advance(server)

    assert directory.keys() == [b"caf\xe9", b"orders"]
    assert directory.complete
    client.delete("orders")
    directory.advance(server)
    assert directory.keys() == [b"caf\xe9"]
    assert [one.key for one in read_fleet(server, directory.keys())] == ["caf\\xe9"]


def test_a_directory_that_is_full_says_so(client: Redis, server: RedisAdmin) -> None:
    for number in range(12):
        client.xadd(f"s-{number:02}", {"data": "{}"})
    directory = StreamDirectory(most=10)

    directory.advance(server)

    assert len(directory.keys()) == 10
    assert not directory.complete


def test_a_name_has_exactly_one_token() -> None:
    """A right for streams is checked by the token, so no second spelling of a name may exist."""
    for key in (b"orders", "bücher".encode(), b"caf\xe9", b"b64:b3JkZXJz", b""):
        assert stream_of_token(stream_token(key)) == key
    assert stream_of_token("b64:b3JkZXJz") == b"b64:b3JkZXJz"  # not orders
