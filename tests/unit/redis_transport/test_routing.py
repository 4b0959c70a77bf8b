"""The key that routes a command to a node of a Redis Cluster, and the target of a redirect."""

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from conquiet.redis_transport.commands import pack, split_packed
from conquiet.redis_transport.routing import CommandRedirects, Redirect, key_of, split_by_slot


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("XADD", "orders", "*", "data", "{}"), b"orders"),
        (("EVALSHA", "digest", 2, "orders", "{orders}:delayed", "argument"), b"orders"),
        (("EVAL", "return 1", "0"), None),
        (("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "orders", ">"), b"orders"),
        (("XREAD", "BLOCK", 10, "streams", b"orders", "$"), b"orders"),
        (("XINFO", "GROUPS", "orders"), b"orders"),
        (("XINFO STREAM", "orders"), b"orders"),
        (("XGROUP", "CREATE", "orders", "g", "0"), b"orders"),
        (("MEMORY", "USAGE", "orders"), b"orders"),
        (("time",), None),
        (("CONFIG GET", "maxmemory"), None),
        (("INFO", "server"), None),
    ],
)
def test_the_key_of_each_kind_of_command_is_found(command: tuple[object, ...], key: bytes | None) -> None:
    assert key_of(command) == key


def test_moved_and_ask_lead_to_a_node_and_the_others_wait() -> None:
    redirects = CommandRedirects(60.0)

    assert redirects.after(MovedError("5 10.0.0.1:7000")) == Redirect(
        ("10.0.0.1", 7000), asking=False, pause_s=0.0, slot=5
    )
    assert redirects.after(AskError("5 :7001")) == Redirect(("", 7001), asking=True, pause_s=0.0, slot=5)
    for waiting in (TryAgainError("x"), ClusterDownError("x")):
        step = redirects.after(waiting)
        assert step is not None
        assert (step.address, step.pause_s > 0) == (None, True)
    assert redirects.after(ResponseError("WRONGTYPE")) is None
    assert redirects.after(ConnectionError("lost")) is None


def test_redirects_end_with_the_time_for_a_reply() -> None:
    assert CommandRedirects(0.0).after(MovedError("5 10.0.0.1:7000")) is None


def test_nodes_that_refer_to_each_other_are_asked_with_pauses() -> None:
    redirects = CommandRedirects(60.0)
    steps = [redirects.after(MovedError("5 10.0.0.1:7000")) for _ in range(20)]

    assert [step.pause_s for step in steps[:3] if step is not None] == [0.0, 0.0, 0.0]
    assert all(step is not None and 0 < step.pause_s <= 0.2 for step in steps[3:])


def test_keys_are_grouped_by_slot_in_a_cluster_only() -> None:
    keys = ["orders", "{orders}:dead", "other"]

    assert split_by_slot(keys, in_cluster=False) == [keys]
    assert split_by_slot(keys, in_cluster=True) == [["orders", "{orders}:dead"], ["other"]]


def test_packed_commands_are_split_where_they_were_joined() -> None:
    commands = [pack("XADD", "s", "*", "data", b"a\r\n*1\r\n$4\r\n"), pack("PING"), pack("SET", "k", "")]

    assert split_packed(b"".join(commands)) == commands
