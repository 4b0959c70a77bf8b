"""Dead letters of a stream by the command: the selected ones, the remaining ones, and the output."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from redis import Redis
from tests.equal_dead_letters import add_equal_dead_letters, left_in, messages_in
from tests.redis_clients import RawRedis

from conquiet.processor.dead_letter_record import DeadRecord
from conquiet.processor.keys import keys_of

Run = Callable[..., Any]

STAYS = "no messages in the first place, or of a group that is not there (give --to GROUP); they stay"
ERROR_NAMES = ("TimeoutError", "builtins.TimeoutError", "asyncio.TimeoutError")


@pytest.fixture
def quick(invoke: Run, redis_url: str) -> Run:
    """The command with the Redis of the test in the environment."""

    def call(*words: str) -> Any:
        return invoke(*words, env={"CONQUIET_REDIS_URL": redis_url})

    return call


def write_dead_letters(client: Redis, stream: str, *records: dict[str, Any]) -> str:
    """Write dead letters as a processor does, without the time that dying takes. Returns the last one's id."""
    fixed: dict[str, Any] = {"id": "m", "entry_id": "1-0", "group": "g", "host": "h", "consumer": "c", "attempts": 1}
    made = [DeadRecord(**fixed | {"reason": "exhausted", "event": "order.created"} | one) for one in records]
    with client.pipeline() as pipe:
        for record in made:
            pipe.xadd(keys_of(stream).dead, {b"data": msgspec.json.encode(record)})
        return str(pipe.execute()[-1])


def test_a_limit_is_a_limit_for_discarding_too(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, *[{}] * 5)

    would = quick("dead-letters", "discard", stream, "--all", "--limit", "2", "--dry-run")
    done = quick("dead-letters", "discard", stream, "--all", "--limit", "2")

    assert (would.stdout, done.stdout) == ("2 would be discarded\n", "2 discarded\n")
    assert client.xlen(keys_of(stream).dead) == 3


def test_a_dead_letter_comes_back_for_its_group_or_the_named_one(
    run: Run, quick: Run, client: Redis, redis_url: str, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(
        client, stream, *[{"group": name, "payload": {"v": 1}} for name in ("old", "old", "mail", "pay")]
    )
    for group in ("new", "mail", "pay"):
        client.xgroup_create(stream, group, mkstream=True)
    env = {"CONQUIET_REDIS_URL": redis_url}

    listed = quick("dead-letters", "list", stream, "--group", "old", "--json")
    stays = quick("dead-letters", "replay", stream, "--group", "old")
    missing = quick("dead-letters", "replay", stream, "--all", "--to", "missing", "--dry-run", "--json")
    moved = run("dead-letters", "replay", stream, "--group", "old", "--to", "new", env=env)
    back = quick("dead-letters", "replay", stream, "--group", "pay")
    discarded = quick("dead-letters", "discard", stream, "--group", "mail")

    assert [one["group"] for one in json.loads(listed.stdout)] == ["old", "old"]
    assert stays.stdout.splitlines() == ["0 replayed", f"2 unreplayable: {STAYS}"]
    assert json.loads(missing.stdout)["unreplayable"] == 4
    assert (moved.returncode, moved.stdout) == (0, "2 replayed\n")
    assert (back.stdout, discarded.stdout) == ("1 replayed\n", "1 discarded\n")
    entries: Any = client.xrange(stream)
    assert [json.loads(next(iter(fields.values())))["group"] for _, fields in entries] == ["new", "new", "pay"]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--source", "orders"), "--source is for RabbitMQ"),
        (("--rabbit", "--group", "g"), "--group is for Redis streams"),
    ],
)
def test_an_option_of_the_other_broker_is_refused(
    quick: Run, client: Redis, key_prefix: str, words: tuple[str, ...], reported: str
) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, {"payload": {}})

    done = quick("dead-letters", "discard", stream, *words)

    assert (done.returncode, reported in done.stderr) == (2, True)
    assert client.xlen(keys_of(stream).dead) == 1


def test_an_error_is_matched_with_or_without_its_module(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, {"error_type": "TimeoutError"}, {"error_type": "TimeoutError", "payload": {}})
    client.xgroup_create(stream, "g", mkstream=True)  # of this group: a replay leaves dead letters without a group

    lists = [quick("dead-letters", "list", stream, "--error", name, "--json").stdout for name in ERROR_NAMES]
    replayed = quick("dead-letters", "replay", stream, "--error", "builtins.TimeoutError")

    assert [len(json.loads(one)) for one in lists] == [2, 2, 0]
    assert replayed.stdout.splitlines() == [
        "1 replayed",
        f"1 unreplayable: {STAYS}",
    ]


def test_an_error_is_found_by_the_last_part_of_its_name(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    names = ("conquiet.errors.DbWriteError", "shop.errors.DbWriteError", "conquiet.errors.MyDbWriteError")
    write_dead_letters(client, stream, *[{"error_type": name, "payload": {"v": 1}} for name in names])
    client.xgroup_create(stream, "g", mkstream=True)

    partly = quick("dead-letters", "list", stream, "--error", "errors.DbWriteError", "--json")
    one = quick("dead-letters", "replay", stream, "--error", "shop.errors.DbWriteError", "--dry-run")
    done = quick("dead-letters", "replay", stream, "--error", "DbWriteError")

    assert len(json.loads(partly.stdout)) == 2
    assert (one.returncode, one.stdout) == (0, "1 would be replayed\n")
    assert (done.returncode, done.stdout) == (0, "2 replayed\n")
    assert client.xlen(keys_of(stream).dead) == 1


@pytest.mark.parametrize("verb", ["replay", "discard"])
@pytest.mark.parametrize("words", [("--error", "DbWritError"), ("--event", "x"), ("--group", "x"), ("--id", "1-1")])
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--json",)])
def test_a_filter_that_matches_nothing_says_what_there_is(
    quick: Run, client: Redis, key_prefix: str, verb: str, words: tuple[str, ...], more: tuple[str, ...]
) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, *[{"error_type": "conquiet.errors.DbWriteError"}] * 2)

    done = quick("dead-letters", verb, stream, *words, *more)

    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"no dead letter of {stream} matches; there are: 2 of event order.created by conquiet.errors.DbWriteError"
        in done.stderr
    )
    assert client.xlen(keys_of(stream).dead) == 2


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_all_of_nothing_is_done_but_a_filter_on_nothing_is_not(quick: Run, key_prefix: str, verb: str) -> None:
    everything = quick("dead-letters", verb, f"{key_prefix}orders", "--all")
    some = quick("dead-letters", verb, f"{key_prefix}orders", "--error", "TimeoutError")

    assert everything.returncode == 0
    assert (some.returncode, "has no dead letters" in some.stderr) == (2, True)


def test_a_limit_is_a_limit_for_replaying_too(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, *[{"payload": {"n": number}} for number in range(5)])
    client.xgroup_create(stream, "g", mkstream=True)

    would = quick("dead-letters", "replay", stream, "--all", "--limit", "2", "--dry-run")
    done = quick("dead-letters", "replay", stream, "--all", "--limit", "2")

    assert (would.stdout, done.stdout) == ("2 would be replayed\n", "2 replayed\n")
    assert (client.xlen(stream), client.xlen(keys_of(stream).dead)) == (2, 3)
    entries: Any = client.xrange(stream)
    assert [json.loads(next(iter(fields.values())))["n"] for _, fields in entries] == [0, 1], "the oldest first"


def test_no_limit_is_none(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    write_dead_letters(client, stream, *[{}] * 10_001)

    listed = quick("dead-letters", "list", stream, "--limit", "0")

    assert len(listed.stdout.splitlines()) == 1 + 10_001


def test_the_text_of_a_dead_letter_adds_no_line(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    dead_id = write_dead_letters(client, stream, {"consumer": "c\nforged  line", "traceback": "File\x1b[2J\nError"})

    shown = quick("dead-letters", "show", stream, dead_id).stdout

    assert "consumer     c\\nforged  line\n" in shown
    assert shown.endswith("\nFile\\x1b[2J\nError\n")


def test_equal_ids_of_partitions_are_separate_dead_letters(quick: Run, redis_url: str, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    with RawRedis.from_url(redis_url, protocol=2) as client:
        ids = add_equal_dead_letters(client, stream, "7-0", "7-1")

        listed = json.loads(quick("dead-letters", "list", stream, "--json").stdout)
        shown = json.loads(quick("dead-letters", "show", stream, "7-0.1", "--json").stdout)
        causes = json.loads(quick("dead-letters", "causes", stream, "--json").stdout)
        done = [
            quick("dead-letters", "discard", stream, "--id", "7-0.1"),
            quick("dead-letters", "discard", stream, "--id", "7-1"),
            quick("dead-letters", "replay", stream, "--id", "7-1.2"),
        ]
        missing = quick("dead-letters", "show", stream, "7-0.1")
        retried = quick("jobs", "retry", stream, "7-1.1", "--data", '{"n": 1}')

        assert [one["id"] for one in listed] == ids
        assert (shown["id"], shown["message_id"]) == ("7-0.1", "of 7-0.1")
        assert {one["event"]: one["example"] for one in causes} == {
            "paid 0": "7-0",
            "paid 1": "7-0.1",
            "paid 2": "7-0.2",
        }
        assert [one.stdout for one in done] == ["1 discarded\n", "1 discarded\n", "1 replayed\n"]
        assert (missing.returncode, f"{stream} has no dead letter 7-0.1" in missing.stderr) == (2, True)
        assert retried.returncode == 0
        assert left_in(client, stream) == [1, 0, 1]
        moved = messages_in(client, stream)
    assert [[json.loads(message)["id"] for message in one] for one in moved] == [[], ["of 7-1.1"], ["of 7-1.2"]]
