"""The model does what Redis does: the same random commands, the same replies, on the model and on a real server."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.simulation import lua
from tests.simulation.redis_model import RedisModel, Refusal, encode, parse_commands

from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.liveness import LEAVE_GROUP, RELEASE_NAME, RESERVE_NAME
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.runtime.claiming import CHARGE, TAKE_OVER
from conquiet.runtime.leases import RELEASE
from conquiet.runtime.shard import MAY_WORK

STREAMS, GROUPS, CONSUMERS = ("a", "b"), ("g", "h"), ("one", "two")
OLD = 10**9
"""An idle time that no entry reaches in a test, in ms."""
Words = tuple[Any, ...]


class Tape:
    """Random commands as the engine sends them. Idle times are 0 or out of reach: two clocks may differ a little."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._number = 0

    def next(self) -> Words:
        rng = self._rng
        stream, group, consumer = rng.choice(STREAMS), rng.choice(GROUPS), rng.choice(CONSUMERS)
        place = (stream, group, consumer)
        kinds: list[Callable[[], Words]] = [
            self._add, self._add, self._add,
            lambda: ("XREADGROUP", "GROUP", group, consumer, "COUNT", rng.randint(1, 4), "STREAMS", stream, ">"),
            lambda: ("XREADGROUP", "GROUP", group, consumer, "COUNT", 2, "STREAMS", *STREAMS, ">", ">"),
            lambda: ("XACK", stream, group, self._id(), self._id()),
            lambda: ("XPENDING", stream, group),
            lambda: ("XPENDING", stream, group, "-", "+", 10, *rng.choice([(), (consumer,)])),
            lambda: ("XPENDING", stream, group, self._id(), self._id(), 1, consumer),
            lambda: ("XCLAIM", *place, rng.choice([0, OLD]), self._id(), self._id(), *self._claim_options()),
            lambda: ("XAUTOCLAIM", *place, rng.choice([0, OLD]), self._start(), "COUNT", 2, *self._just()),
            lambda: ("XGROUP", "CREATE", stream, group, "0-0", "MKSTREAM"),
            lambda: ("XGROUP", "DELCONSUMER", stream, group, consumer),
            lambda: ("XDEL", stream, self._id()),
            lambda: ("XLEN", stream),
            lambda: ("EVAL", EXTEND_LEASE, 1, *place, self._id(), self._id()),
            lambda: ("EVAL", CHARGE, 1, *place, self._id(), rng.randint(1, 5)),
            lambda: ("EVAL", RELEASE, 1, *place, OLD, self._id(), rng.randint(0, 3), self._id(), 0),
            lambda: ("EVAL", MAY_WORK, 1, *place),
            lambda: ("EVAL", TAKE_OVER, 1, *place, rng.choice([-1, 0, OLD]), self._start(), 3, *self._limits()),
            lambda: ("EVAL", RESERVE_NAME, 2, "key", "names", rng.choice("xy"), 100_000, consumer),
            lambda: ("EVAL", RELEASE_NAME, 1, "key", rng.choice("xy")),
            lambda: ("EVAL", LEAVE_GROUP, 3, "key", stream, "names", rng.choice("xy"), group, consumer),
            lambda: ("GET", "key"),
            lambda: ("SADD", "names", consumer),
        ]  # fmt: skip
        return rng.choice(kinds)()

    def _add(self) -> Words:
        self._number += 1
        fields = self._rng.choice([("data", "{}"), ("data", "x" * 200), ("a", "1", "b", "2"), ("other", "y" * 99)])
        return ("XADD", self._rng.choice(STREAMS), f"{self._number}-1", *fields)

    def _id(self) -> str:
        return f"{self._rng.randint(max(1, self._number - 12), self._number + 1)}-1"

    def _start(self) -> str:
        return self._rng.choice(["0-0", self._id()])

    def _just(self) -> Words:
        return self._rng.choice([(), ("JUSTID",)])

    def _claim_options(self) -> Words:
        retry = self._rng.choice([(), ("RETRYCOUNT", self._rng.randint(0, 9))])
        return (*retry, *self._just())

    def _limits(self) -> Words:
        return (
            self._rng.choice([0, 2, 10]),
            50,
            "data",
            self._rng.choice([0, 3, 20]),
            *self._rng.choice([(0,), (1, self._id())]),
            *self._rng.choice([(), (self._id(), self._rng.choice([0, OLD]))]),
        )


def plain(reply: Any) -> Any:
    """Return a reply in a form that both sides share: refusals by their first word, idle times left out."""
    if isinstance(reply, (Refusal, redis.ResponseError)):
        return "refused " + str(reply).split(maxsplit=1)[0]
    if isinstance(reply, list):
        is_row = len(reply) == 4 and isinstance(reply[1], bytes) and isinstance(reply[2], int)
        return [plain(item) for place, item in enumerate(reply) if not (is_row and place == 2)]
    return bytes(reply) if isinstance(reply, bytes) else reply


@pytest.fixture
def connection(redis_url: str) -> Iterator[redis.connection.AbstractConnection]:
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushdb()
    made = client.connection_pool.get_connection()
    yield made
    client.flushdb()
    client.connection_pool.release(made)
    client.close()


def ask(connection: Any, words: Words) -> Any:
    connection.send_command(*words)
    try:
        return connection.read_response()
    except redis.ResponseError as refusal:
        # redis-py takes the first word away from refusals that it knows by class.
        return refusal


@pytest.mark.parametrize("seed", range(8))
def test_the_model_answers_random_tapes_as_redis_does(
    connection: redis.connection.AbstractConnection, seed: int
) -> None:
    model, tape, seen = RedisModel(lambda: 50_000_000), Tape(seed), []
    for number in range(400):
        words = tape.next()
        seen.append(words)
        (packed,), _ = parse_commands(pack(*words))

        found, real = plain(model.execute(packed)), plain(ask(connection, words))

        if isinstance(found, str) or isinstance(real, str):
            assert isinstance(found, str), f"{number}: {words} -> model {found}, Redis {real}"
            assert isinstance(real, str), f"{number}: {words} -> model {found}, Redis {real}"
            continue
        assert found == real, f"{number}: {words} -> model {found}, Redis {real}"


def test_replies_are_encoded_as_a_server_writes_them() -> None:
    assert encode([b"ab", 7, None, []]) == b"*4\r\n$2\r\nab\r\n:7\r\n$-1\r\n*0\r\n"
    assert encode(Refusal("ERR no")) == b"-ERR no\r\n"


def test_commands_may_arrive_in_pieces() -> None:
    data = pack("XACK", "s", "g", "1-1") + pack("GET", "k")

    found, rest = parse_commands(data[:-3])

    assert (found, parse_commands(rest + data[-3:])) == ([[b"XACK", b"s", b"g", b"1-1"]], ([[b"GET", b"k"]], b""))


@pytest.mark.parametrize("script", ["while true do end", "return }", "goto x", "return {1, 2"])
def test_lua_that_is_not_understood_is_refused(script: str) -> None:
    with pytest.raises((lua.LuaError, KeyError)):
        lua.run(script.encode(), [], [], lua.Table())


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("return 1 + 2 * 3", 7),
        ("local a, b = 1, 2 if a > b then return 'x' elseif a == 1 then return 'y' end return 'z'", b"y"),
        ("local n = 0 for i = 2, 10, 2 do n = n + i end return n", 30),
        ("local t = {} for _, v in ipairs({3, 4}) do t[#t + 1] = v end return #t .. ''", b"2"),
        ("return false or nil and 1", None),
        ("return not nil", True),
        ("return tonumber('12') - 2", 10),
        ("return ARGV[2]", None),
        ("return #KEYS[1]", 3),
    ],
)
def test_lua_computes_as_the_server_does(script: str, result: Any) -> None:
    assert lua.run(script.encode(), [b"key"], [b"1"], lua.Table()) == result
