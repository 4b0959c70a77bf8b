"""The other packages by the installed command: processor, scheduler, RabbitMQ, database."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from sqlalchemy import create_engine, text

from conquiet.processor import Processor, ProcessorSettings
from conquiet.runtime import RuntimeSettings
from conquiet.scheduler import Every, ScheduleEntry, Schedules
from conquiet.testing import wait_until, wait_until_async

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SYNCER = """
def good(message):
    print(f"got {message['schema']}", flush=True)
    return True

def bad(message):
    return "neither true nor false"

number = 17
"""


# ---------------------------------------------------------------- processor
async def kill_all(redis_url: str, stream: str) -> None:
    """Process what is in the stream with a handler that refuses everything."""
    client = AsyncRedis.from_url(redis_url)
    kept = ProcessorSettings(retention=None)  # the test counts the entries that were ever written
    processor = Processor(client, [stream], concurrency=4, settings=kept, runtime=RuntimeSettings(block_ms=100))

    async def refuse(ctx: Any) -> None:
        raise ZeroDivisionError(str(ctx.data))  # an exception's text tends to quote the message

    processor.handler("order.created")(refuse)
    async with processor:
        await wait_until_async(lambda: processor.dead_letters().count())
        await processor.wait_for_active_tasks()
        await wait_until_async(_drained(client, stream))
    await client.aclose()


def _drained(client: AsyncRedis, stream: str) -> Callable[[], Any]:
    async def drained() -> bool:
        (group,) = await client.xinfo_groups(stream)
        return bool(group["pending"] == 0 and group["lag"] == 0)

    return drained


def test_emit_then_dead_letters_are_listed_shown_replayed_and_discarded(
    conquiet: Run, quick: Run, client: Redis, redis_url: str, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    one = conquiet("emit", "order.created", '{"email": "jane@example.org"}', "--stream", stream, "--id", "one")
    twice = quick("emit", "order.created", "{}", "--stream", stream, "--id", "one")
    many = quick("emit", "order.created", "-", "--stream", stream, stdin='{"n": 1}\n{"n": 2}\n')
    assert (one.stdout, many.stdout) == ("one\n", f"2 emitted to {stream}\n"), one.stderr + many.stderr
    assert "a duplicate" in twice.stdout
    asyncio.run(kill_all(redis_url, stream))

    listed = json.loads(conquiet("dead-letters", "list", stream, "--json").stdout)
    shown = quick("dead-letters", "show", stream, listed[0]["id"])
    open_shown = quick("dead-letters", "list", stream, "--show-payload", "--json")
    (cause,) = json.loads(quick("dead-letters", "causes", stream, "--json").stdout)
    unchosen = quick("dead-letters", "replay", stream)
    would = quick("dead-letters", "replay", stream, "--all", "--dry-run")
    replayed = conquiet("dead-letters", "replay", stream, "--id", listed[0]["id"])
    discarded = quick("dead-letters", "discard", stream, "--error", "ZeroDivisionError")
    empty = quick("dead-letters", "list", stream)

    assert [row["event"] for row in listed] == ["order.created"] * 3
    assert "ZeroDivisionError" in shown.stdout
    assert "jane@" not in shown.stdout + json.dumps(listed)
    assert "jane@" in open_shown.stdout
    assert (cause["error"], cause["count"]) == ("ZeroDivisionError", 3)
    assert (unchosen.returncode, "choose the dead letters" in unchosen.stderr) == (2, True)
    assert would.stdout == "3 would be replayed\n"
    assert (replayed.stdout, discarded.stdout) == ("1 replayed\n", "2 discarded\n")
    assert empty.stdout == "there are no dead letters\n"
    assert client.xlen(stream) == 4


def test_a_dead_letter_that_is_gone_is_one_sentence(quick: Run, key_prefix: str) -> None:
    done = quick("dead-letters", "show", f"{key_prefix}orders", "1-0")

    assert done.returncode == 2
    assert "has no dead letter 1-0" in done.stderr


def test_a_pause_of_a_stream_that_is_not_there_is_refused(quick: Run, client: Redis, key_prefix: str) -> None:
    """A mistyped name must not count as a paused stream."""
    stream = f"{key_prefix}nosuch"

    for words in (("pause", stream), ("pause", stream, "--event", "mail.send"), ("resume", stream)):
        done = quick(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"conquiet: there is no stream at key '{stream}'\n"
    assert client.exists(f"{{{stream}}}:paused") == 0


def test_a_pause_that_outlived_its_stream_can_be_ended(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}mails"
    client.xadd(stream, {"data": "{}"})
    quick("pause", stream)
    client.delete(stream)

    assert quick("resume", stream).stdout == f"{stream} continues\n"
    assert quick("resume", stream).returncode == 2


def test_pause_and_resume_a_stream_and_an_event(quick: Run, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}mails"
    client.xadd(stream, {"data": "{}"})

    said = [
        quick(*words).stdout.strip()
        for words in (
            ("pause", stream),
            ("pause", stream),
            ("pause", stream, "--event", "mail.send"),
            ("resume", stream),
            ("resume", stream, "--event", "mail.send"),
            ("resume", stream),
        )
    ]

    assert said == [
        f"{stream} paused",
        f"{stream} was paused already",
        f"event mail.send of {stream} paused",
        f"{stream} continues",
        f"event mail.send of {stream} continues",
        f"{stream} was not paused",
    ]


# ---------------------------------------------------------------- scheduler
def test_a_schedule_is_listed_looked_ahead_paused_and_removed(
    conquiet: Run, quick: Run, redis_url: str, key_prefix: str
) -> None:
    group = f"{key_prefix}group"

    async def add() -> None:
        async with Schedules(AsyncRedis.from_url(redis_url), group=group) as schedules:
            await schedules.add(ScheduleEntry("report", Every(60), event="report.make", stream=f"{key_prefix}reports"))

    asyncio.run(add())
    words = ("--group", group)

    (listed,) = json.loads(conquiet("schedule", "list", *words, "--json").stdout)
    ahead = json.loads(quick("schedule", "next", "-n", "3", *words, "--json").stdout)
    paused = quick("schedule", "pause", "report", *words)
    none_ahead = quick("schedule", "next", *words)
    resumed = quick("schedule", "resume", "report", *words)
    removed = quick("schedule", "remove", "report", *words)
    gone = quick("schedule", "remove", "report", *words)

    assert (listed["name"], listed["fired"]) == ("report", 0)
    assert len(ahead) == 3
    assert paused.stdout == "report paused\n"
    assert none_ahead.stdout == "no runs are due\n"
    assert (resumed.stdout, removed.stdout) == ("report continues\n", "report removed\n")
    assert (gone.returncode, "has no entry 'report'" in gone.stderr) == (2, True)


# ---------------------------------------------------------------- RabbitMQ
def event(number: int) -> str:
    return json.dumps({"schema": "proca:event:2", "eventType": "campaign.updated", "number": number})


def test_publish_is_confirmed_and_a_missing_queue_is_an_error(
    run: Run, invoke: Run, amqp_url: str, declare: Callable[..., None]
) -> None:
    env = {"CONQUIET_RABBIT_URL": amqp_url}
    declare("orders")

    done = run("publish", "orders", "-", stdin='{"n": 1}\n{"n": 2}\n', env=env)
    missing = invoke("publish", "nowhere", "{}", env=env)
    bad = invoke("publish", "orders", "{bad", env=env)

    assert done.stdout == "2 published to orders\n", done.stderr
    assert missing.returncode == 1
    assert "no queue is bound for nowhere" in missing.stderr
    assert (bad.returncode, "the JSON given is" in bad.stderr) == (2, True)


def test_publish_sends_the_content_type_that_is_asked_for(
    invoke: Run, amqp_url: str, declare: Callable[..., None]
) -> None:
    declare("orders")

    done = invoke("publish", "orders", "{}", "--content-type", "text/plain", env={"CONQUIET_RABBIT_URL": amqp_url})

    assert done.returncode == 0, done.stderr
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        _, properties, _ = connection.channel().basic_get("orders", auto_ack=True)
    assert properties.content_type == "text/plain"


def test_dead_letters_of_a_queue_are_seen_put_back_and_thrown_away(
    run: Run, invoke: Run, amqp_url: str, declare: Callable[..., None]
) -> None:
    env = {"CONQUIET_RABBIT_URL": amqp_url}
    declare("orders", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"})
    declare("orders.dead")
    invoke("publish", "orders", "-", stdin='{"n": 1}\n{"n": 2}\n{"n": 3}\n', env=env)
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    for _ in range(3):
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)
    connection.close()

    words = ("--rabbit", "--json")
    seen = json.loads(run("dead-letters", "list", "orders.dead", *words, env=env).stdout)
    again = json.loads(invoke("dead-letters", "causes", "orders.dead", *words, env=env).stdout)
    back = json.loads(invoke("dead-letters", "replay", "orders.dead", "--all", "--limit", "2", *words, env=env).stdout)
    gone = json.loads(invoke("dead-letters", "discard", "orders.dead", "--all", *words, env=env).stdout)
    missing = invoke("dead-letters", "list", "nowhere", "--rabbit", env=env)

    assert [(one["source"], one["reason"]) for one in seen] == [("orders", "rejected")] * 3
    assert "payload" not in seen[0]
    assert again == [{"source": "orders", "reason": "rejected", "count": 3}]
    assert back["replayed"] == 2
    assert gone == {"discarded": 1, "dry_run": False}
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr


def test_dead_letters_of_a_queue_are_selected_by_cause(
    invoke: Run, amqp_url: str, declare: Callable[..., None]
) -> None:
    """AMQP has no filter: all are taken, and the others return to their places."""
    env = {"CONQUIET_RABBIT_URL": amqp_url}
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "all.dead"}
    declare("all.dead")
    declare("orders", **dead)
    declare("refunds", **dead | {"x-message-ttl": 0})
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    for number in range(2):
        named = pika.BasicProperties(message_id=f"order-{number}", headers={"tenant": "canary"})
        channel.basic_publish("", "orders", b'{"card": "4111"}', named)
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)

    def dead_are(number: int) -> Callable[[], bool]:
        return lambda: bool(channel.queue_declare("all.dead", passive=True).method.message_count == number)

    wait_until(dead_are(2))  # the third comes another way and could be faster
    channel.basic_publish("", "refunds", b"{}")  # expires immediately
    wait_until(dead_are(3))
    connection.close()

    def reported(*words: str) -> Any:
        done = invoke("dead-letters", words[0], "all.dead", *words[1:], "--rabbit", "--json", env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sources(*words: str) -> list[str]:
        return [one["source"] for one in reported("list", *words)]

    shown, at_place = reported("show", "order-1"), reported("show", "3")
    plain = invoke("dead-letters", "show", "all.dead", "order-0", "--rabbit", env=env)
    opened = reported("show", "order-1", "--show-payload")
    unreachable = invoke("dead-letters", "show", "all.dead", "order-7", "--rabbit", env=env)
    eventful = invoke("dead-letters", "list", "all.dead", "--rabbit", "--event", "x", env=env)

    assert (shown["position"], shown["deaths"][0]["reason"], shown["headers"]) == (2, "rejected", ["tenant"])
    assert (at_place["source"], at_place["reason"], at_place["message_id"]) == ("refunds", "expired", "")
    assert "rejected in orders, 1 times" in plain.stdout
    assert "4111" not in plain.stdout + json.dumps(shown)
    assert "canary" not in plain.stdout + json.dumps(shown)
    assert opened["payload"] == '{"card": "4111"}'
    assert (unreachable.returncode, "has no dead letter order-7" in unreachable.stderr) == (2, True)
    assert (eventful.returncode, "have no event" in eventful.stderr) == (2, True)
    assert sources("--error", "expired") == ["refunds"]
    assert sources("--source", "orders") == ["orders", "orders"]
    assert reported("replay", "--source", "refunds", "--to", "orders", "--dry-run")["replayed"] == 1
    assert reported("replay", "--source", "refunds", "--to", "orders")["replayed"] == 1
    assert sources() == ["orders", "orders"]  # in their places: the one behind them was taken from among them
    # The second: messages before it are taken too, and must not be discarded with it.
    assert reported("discard", "--id", "order-1", "--dry-run") == {"discarded": 1, "dry_run": True}
    assert reported("discard", "--id", "order-1") == {"discarded": 1, "dry_run": False}
    assert [one["message_id"] for one in reported("list")] == ["order-0"]


def test_rabbit_run_ends_with_0_after_sigterm(
    command: Path,
    clean_environment: Callable[..., dict[str, str]],
    invoke: Run,
    amqp_url: str,
    declare: Callable[..., None],
    tmp_path: Path,
) -> None:
    (tmp_path / "sync.py").write_text(SYNCER)
    declare("orders")
    invoke("publish", "orders", event(1), env={"CONQUIET_RABBIT_URL": amqp_url})
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [command, "rabbit", "run", "-", "orders", "sync:good"],
            env=clean_environment(CONQUIET_RABBIT_URL=amqp_url),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )

    try:
        wait_until(lambda: "got proca:event:2" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(60)
    finally:
        process.kill()
        process.wait()

    assert exit_code == 0


def test_rabbit_run_ends_with_1_after_a_fatal_error_else_with_2(
    run: Run, invoke: Run, amqp_url: str, declare: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "sync.py").write_text(SYNCER)
    declare("orders")
    invoke("publish", "orders", event(1), env={"CONQUIET_RABBIT_URL": amqp_url})

    broken = run("rabbit", "run", amqp_url, "orders", "sync:bad")
    missing = run("rabbit", "run", amqp_url, "nowhere", "sync:good")
    no_broker = run("rabbit", "run", "amqp://guest:secret@127.0.0.1:1", "orders", "sync:good")
    no_function = run("rabbit", "run", amqp_url, "orders", "sync:number")
    no_level = invoke("rabbit", "run", amqp_url, "orders", "sync:good", "--log-level", "loud")

    assert broken.returncode == 1
    assert [one.returncode for one in (missing, no_broker, no_function, no_level)] == [2, 2, 2, 2]
    assert "RabbitMQ at amqp://***@127.0.0.1:1 does not answer" in no_broker.stderr
    assert "must be one of debug, info, warning, error" in no_level.stderr
    assert "nowhere" in missing.stderr
    assert "sync:number is a int, not a function" in no_function.stderr
    assert "Traceback" not in broken.stderr + missing.stderr + no_broker.stderr


def test_no_broker_at_the_url_and_a_wrong_password(run: Run, invoke: Run, amqp_url: str) -> None:
    unreachable = run("publish", "orders", "{}", "--rabbit-url", "amqp://user:geheim@127.0.0.1:1")
    wrong = invoke("publish", "orders", "{}", "--rabbit-url", amqp_url.replace("guest:guest", "guest:falsch"))

    assert (unreachable.returncode, wrong.returncode) == (2, 2)
    assert "RabbitMQ at amqp://***@127.0.0.1:1 does not answer" in unreachable.stderr
    assert "refused the user name or the password" in wrong.stderr
    assert "geheim" not in unreachable.stderr
    assert "falsch" not in wrong.stderr


# ---------------------------------------------------------------- database
def test_db_init_and_purge(run: Run, invoke: Run, db_url: str) -> None:
    env = {"CONQUIET_DB_URL": db_url}

    first, second = run("db", "init", env=env), invoke("db", "init", env=env)
    purged = invoke("db", "purge", "--older-than-s", "60", env=env)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert purged.stdout == "0 rows deleted\n"
    engine = create_engine(db_url)
    with engine.connect() as connection:
        tables = {name for (name,) in connection.execute(text("SHOW TABLES"))}
    engine.dispose()
    assert tables == {"conquiet_inbox", "conquiet_outbox"}


def test_db_init_can_print_its_statements(invoke: Run) -> None:
    done = invoke("db", "init", "--sql", "--inbox", "my_inbox")

    assert done.returncode == 0
    assert "CREATE TABLE IF NOT EXISTS `my_inbox`" in done.stdout


def test_no_database_at_the_url(run: Run, invoke: Run) -> None:
    unreachable = run("db", "init", "--db-url", "mysql+pymysql://user:geheim@127.0.0.1:1/shop")
    nonsense = invoke("db", "init", "--db-url", "nonsense")

    assert (unreachable.returncode, nonsense.returncode) == (2, 2)
    assert "the database at mysql+pymysql://***@127.0.0.1:1/shop does not answer" in unreachable.stderr
    assert "the database URL cannot be used" in nonsense.stderr
    assert "geheim" not in unreachable.stderr


def test_a_poison_guard_moves_what_is_fatal_twice(
    run: Run, invoke: Run, amqp_url: str, declare: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "sync.py").write_text(SYNCER)
    declare("orders")
    invoke("publish", "orders", "{}", env={"CONQUIET_RABBIT_URL": amqp_url})
    words = ("rabbit", "run", amqp_url, "orders", "sync:bad", "--poison-guard")

    ended = [run(*words) for _ in range(2)]

    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        method, properties, _ = connection.channel().basic_get("orders.dead", auto_ack=True)
        left = connection.channel().queue_declare("orders", passive=True).method.message_count
    assert [one.returncode for one in ended] == [1, 1]
    assert method is not None, ended[1].stderr
    assert left == 0
    assert all(f"message_id={properties.message_id}" in one.stderr for one in ended)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--keys-env", "SHOP_KEYS"), "MemoryKeyStore(environment variable SHOP_KEYS, 1 keys)"),
        (("--keys", "keys.json"), "FileKeyStore('keys.json', 1 keys)"),
        (("--keys", "volume/keys.json", "--secret-volume"), "FileKeyStore('volume/keys.json', 1 keys)"),
    ],
)
def test_rabbit_run_takes_keys_from_a_file_or_a_variable(
    invoke: Run, amqp_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    keys = json.dumps({"public": {"private": "A" * 43}})
    (tmp_path / "sync.py").write_text(SYNCER)
    (tmp_path / "keys.json").write_text(keys)
    (tmp_path / "keys.json").chmod(0o600)
    (tmp_path / "volume" / "..2026").mkdir(parents=True)
    (tmp_path / "volume" / "..2026" / "keys.json").write_text(keys)
    (tmp_path / "volume" / "..2026" / "keys.json").chmod(0o640)
    (tmp_path / "volume" / "..data").symlink_to("..2026")
    (tmp_path / "volume" / "keys.json").symlink_to("..data/keys.json")
    given: list[Any] = []

    def note(*_: object, **options: Any) -> int:
        given.append(options)
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conquiet.rabbit.run_process", note)
    env = {"SHOP_KEYS": keys}

    done = invoke("rabbit", "run", amqp_url, "orders", "sync:good", *words, env=env)
    both = invoke("rabbit", "run", amqp_url, "orders", "sync:good", "--keys", "k", "--keys-env", "SHOP_KEYS", env=env)

    assert done.returncode == 0, done.stderr
    assert repr(given[0]["key_store"]) == expected
    assert given[0]["schemas"] is not None, "without the schemas of proca no box would be opened"
    assert (both.returncode, "keys come from one place" in both.stderr) == (2, True)
