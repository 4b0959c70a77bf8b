"""Inspecting and maintaining streams, by the installed command against a real server."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from conquiet.testing import RedisServer, wait_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def orders(client: Redis, key_prefix: str) -> str:
    """A stream with 5 entries, 3 of them pending for alice in group billing."""
    key = f"{key_prefix}orders"
    for number in range(5):
        client.xadd(key, {"data": json.dumps({"n": number})})
    client.xgroup_create(key, "billing", "0")
    client.xreadgroup("billing", "alice", {key: ">"}, count=3)
    return key


def test_enqueue_takes_a_word_stdin_and_a_file(conquiet: Run, client: Redis, key_prefix: str, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"n": 3}\n\n{"n": 4}\n')
    key = f"{key_prefix}new"

    one = conquiet("enqueue", key, '{"n": 1}')
    piped = conquiet("enqueue", key, "-", stdin='{"n": 2}\n')
    file = conquiet("enqueue", key, "@orders.jsonl", "--json")

    assert [one.returncode, piped.returncode, file.returncode] == [0, 0, 0], one.stderr + piped.stderr + file.stderr
    assert json.loads(file.stdout)["enqueued"] == 2
    entries: Any = client.xrange(key)
    assert [json.loads(fields["data"])["n"] for _, fields in entries] == [1, 2, 3, 4]
    assert one.stdout.strip() == entries[0][0]


def test_bad_json_on_line_17_is_named_and_not_shown(conquiet: Run, client: Redis, key_prefix: str) -> None:
    lines = [json.dumps({"n": number}) for number in range(20)]
    lines[16] = '{"email": "jane@example.org"'

    done = conquiet("enqueue", f"{key_prefix}new", "-", stdin="\n".join(lines))

    assert done.returncode == 1
    assert "line 17 is not valid JSON; 16 payloads before it are enqueued" in done.stderr
    assert "jane@" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert client.xlen(f"{key_prefix}new") == 16


def test_a_payload_that_is_not_an_object_is_refused(quick: Run, key_prefix: str) -> None:
    done = quick("enqueue", f"{key_prefix}new", "[1, 2]")

    assert done.returncode == 2
    assert "is JSON, but not an object" in done.stderr


def test_a_missing_file_is_named(quick: Run, key_prefix: str) -> None:
    done = quick("enqueue", f"{key_prefix}new", "@nothing.jsonl")

    assert done.returncode == 2
    assert "nothing.jsonl cannot be read" in done.stderr


def test_inspect_lists_streams_in_a_pipe_as_tab_separated_lines(conquiet: Run, orders: str) -> None:
    done = conquiet("inspect", "--pattern", orders)

    header, line = done.stdout.splitlines()
    row = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert (row["stream"], row["length"], row["group"], row["lag"], row["pending"]) == (
        orders,
        "5",
        "billing",
        "2",
        "3",
    )
    assert "\x1b" not in done.stdout


def test_inspect_shows_one_stream_and_json(quick: Run, orders: str) -> None:
    detail = quick("inspect", orders)
    machine = json.loads(quick("inspect", orders, "--json").stdout)
    everything = json.loads(quick("inspect", "--pattern", orders, "--json").stdout)

    assert "billing\talice\tlive\t3" in detail.stdout
    assert machine["groups"][0]["consumers"][0]["pending"] == 3
    assert everything["streams"][0]["key"] == orders


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_inspect_watches_until_interrupted(
    command: Path,
    clean_environment: Callable[..., dict[str, str]],
    client: Redis,
    orders: str,
    redis_url: str,
    signum: int,
    code: int,
) -> None:
    """A separate exit code, and not a death by the signal: connections are closed first."""
    process = subprocess.Popen(
        [command, "inspect", orders, "--watch-s", "0.1", "--redis-url", redis_url],
        env=clean_environment(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        looks = 0
        while looks < 2:
            looks += process.stdout.readline().startswith("stream\tlength")
        process.send_signal(signum)
        _, said = process.communicate(timeout=60)

    assert process.returncode == code
    assert "Traceback" not in said


def test_a_terminated_short_command_leaves_nothing_behind(
    command: Path, clean_environment: Callable[..., dict[str, str]], client: Redis, key_prefix: str, redis_url: str
) -> None:
    """It waits for its input when SIGTERM comes: nothing was sent, and no connection stays."""
    stream = f"{key_prefix}unsent"
    process = subprocess.Popen(
        [command, "enqueue", stream, "-", "--redis-url", f"{redis_url}?client_name=unsent"],
        env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        wait_until(lambda: any(one["name"] == "unsent" for one in client.client_list()))
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.stderr is not None
        said = process.stderr.read()

    assert process.returncode == 143
    assert "Traceback" not in said
    assert client.exists(stream) == 0
    wait_until(lambda: all(one["name"] != "unsent" for one in client.client_list()))


def test_pending_reclaim_remove_consumer_and_trim_work_together(
    conquiet: Run, quick: Run, client: Redis, orders: str
) -> None:
    shown = json.loads(conquiet("pending", orders, "billing", "--json").stdout)
    would = quick("reclaim", orders, "billing", "--consumer", "alice", "--dry-run")
    refused = quick("remove-consumer", orders, "billing", "alice", "--min-idle-s", "0", "--force")
    unproved = quick("remove-consumer", orders, "billing", "alice", "--min-idle-s", "0", "--new-owner", "bob")
    done = conquiet("remove-consumer", orders, "billing", "alice", "--min-idle-s", "0", "--new-owner", "bob", "--force")

    assert [(row["consumer"], row["deliveries"]) for row in shown] == [("alice", 1)] * 3
    assert would.stdout.startswith("3 entries would be reclaimed")
    assert (refused.returncode, "3 entries pending" in refused.stderr) == (1, True)
    assert (unproved.returncode, "is not proved dead" in unproved.stderr) == (1, True)
    assert done.stdout.strip() == "alice removed; 3 entries went to bob"

    reclaimed = json.loads(conquiet("reclaim", orders, "billing", "--consumer", "bob", "--json").stdout)
    assert reclaimed["owner"] == "conquiet-reclaimed"
    client.xack(orders, "billing", *reclaimed["ids"])
    would_trim = quick("trim", orders, "--dry-run")
    trimmed = conquiet("trim", orders)
    assert "5 entries are there" in would_trim.stdout
    assert trimmed.stdout.startswith("2 entries removed")
    assert client.xlen(orders) == 3


def test_a_reclaim_without_filter_is_refused(quick: Run, orders: str) -> None:
    done = quick("reclaim", orders, "billing")

    assert done.returncode == 2
    assert "would claim from live consumers" in done.stderr


# ---------------------------------------------------------------- each error is a sentence
@pytest.mark.parametrize(
    "words",
    [("inspect", "{key}"), ("pending", "{key}", "billing"), ("trim", "{key}"), ("remove-consumer", "{key}", "g", "c")],
)
def test_a_missing_stream_is_one_sentence(quick: Run, key_prefix: str, words: tuple[str, ...]) -> None:
    done = quick(*(word.format(key=f"{key_prefix}nothing") for word in words))

    assert done.returncode == 2
    assert done.stderr == f"conquiet: there is no stream at key '{key_prefix}nothing'\n"
    assert done.stdout == ""


def test_a_missing_group_is_one_sentence_and_no_loss(quick: Run, orders: str) -> None:
    done = quick("remove-consumer", orders, "mailing", "alice", "--min-idle-s", "0")

    assert done.returncode == 2
    assert done.stderr == f"conquiet: stream '{orders}' has no consumer group 'mailing'; there is: billing\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("inspect", "\udcff"), "a name or an argument"),
        (("inspect", "--pattern", "\udcff"), "a name or an argument"),
        (("pending", "\udcff", "g"), "a name or an argument"),
        (("pending", "{key}", "\udcff"), "a name or an argument"),
        (("reclaim", "{key}", "billing", "--consumer", "\udcff"), "a name or an argument"),
        (("remove-consumer", "{key}", "billing", "\udcff"), "consumer"),
        (("trim", "\udcff"), "a name or an argument"),
        (("enqueue", "a\udcff", "{{}}"), "stream"),
    ],
)
def test_a_word_that_is_not_utf_8_is_one_sentence(quick: Run, orders: str, words: tuple[str, ...], what: str) -> None:
    """Python reads a byte of the shell that is not UTF-8 as half a character."""
    done = quick(*(word.format(key=orders) for word in words))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"conquiet: {what} is not valid UTF-8; write it in UTF-8\n"


def test_a_time_that_the_server_cannot_count_is_simply_long(quick: Run, orders: str) -> None:
    assert quick("pending", orders, "billing", "--min-idle-s", "1e300").stdout == "nothing is pending\n"
    assert quick("trim", orders, "--older-than-s", "1.7e308").stdout.startswith("0 entries removed")


@pytest.mark.parametrize(
    "words",
    [("inspect", "{key}"), ("enqueue", "{key}", "{{}}"), ("emit", "e", "{{}}", "-s", "{key}"), ("trim", "{key}")],
)
def test_a_key_of_another_type_is_one_sentence(
    quick: Run, client: Redis, key_prefix: str, words: tuple[str, ...]
) -> None:
    client.lpush(f"{key_prefix}list", "x")

    done = quick(*(word.format(key=f"{key_prefix}list") for word in words))

    assert done.returncode == 2
    assert f"the key '{key_prefix}list' holds a list, not a stream" in done.stderr
    assert client.llen(f"{key_prefix}list") == 1


def test_no_server_at_the_url(run: Run) -> None:
    done = run("inspect", "--redis-url", "redis://user:geheim@127.0.0.1:1/0?password=geheim")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "conquiet: Redis at redis://***@127.0.0.1:1/0 does not answer"
    assert "fix: start the server" in done.stderr
    assert "geheim" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_traceback_comes_only_with_debug_wherever_it_stands(run: Run) -> None:
    done = run("inspect", "--redis-url", "redis://127.0.0.1:1", "--debug")

    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_wrong_password(run: Run, invoke: Run, private_redis: Callable[..., RedisServer]) -> None:
    server = private_redis(password="richtig")

    wrong = run("inspect", "--redis-url", f"redis://:falsch@127.0.0.1:{server.port}")
    missing = invoke("inspect", "--redis-url", f"redis://127.0.0.1:{server.port}")
    right = invoke("inspect", "--redis-url", server.url)

    assert (wrong.returncode, missing.returncode, right.returncode) == (2, 2, 0)
    assert "refused the user name or the password" in wrong.stderr
    assert "refused the user name or the password" in missing.stderr
    assert "falsch" not in wrong.stderr
    assert right.stdout == "there are no streams\n"


def test_no_url_at_all_says_how_to_give_one(invoke: Run) -> None:
    done = invoke("inspect")

    assert done.returncode == 2
    assert "no --redis-url was given" in done.stderr
    assert "CONQUIET_REDIS_URL" in done.stderr
    assert "conquiet.toml" in done.stderr


def test_flag_beats_environment_beats_file(invoke: Run, redis_url: str, tmp_path: Path) -> None:
    nowhere = "redis://127.0.0.1:1"
    (tmp_path / "conquiet.toml").write_text(f'redis_url = "{redis_url}"\n')
    assert invoke("inspect").returncode == 0
    assert invoke("inspect", env={"CONQUIET_REDIS_URL": nowhere}).returncode == 2
    assert invoke("inspect", "--redis-url", redis_url, env={"CONQUIET_REDIS_URL": nowhere}).returncode == 0


@pytest.mark.parametrize(
    ("content", "complaint"), [("redis_url = ", "is not TOML (at"), ("redis_url = 5", "must be a string")]
)
def test_a_broken_file_is_named(invoke: Run, tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "conquiet.toml").write_text(content)

    done = invoke("inspect")

    assert done.returncode == 2
    assert f"conquiet.toml {complaint}" in done.stderr


def test_a_named_file_that_is_missing(invoke: Run) -> None:
    done = invoke("inspect", env={"CONQUIET_CONFIG": "other.toml"})

    assert (done.returncode, "other.toml does not exist" in done.stderr) == (2, True)
