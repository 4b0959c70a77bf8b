"""``conquiet doctor``: exit codes and output. What it finds is proved in tests/integration/management."""

import json
from collections.abc import Callable
from typing import Any

from conquiet.testing import RedisServer

Run = Callable[..., Any]


def test_healthy_is_0_an_error_is_1_and_no_server_is_2(
    run: Run, invoke: Run, private_redis: Callable[..., RedisServer]
) -> None:
    healthy, forgetful = private_redis(aof=True), private_redis()

    fine = run("doctor", "--redis-url", healthy.url)
    bad = run("doctor", "--redis-url", forgetful.url, "--json")
    shown = invoke("doctor", "--redis-url", forgetful.url, "--notes")
    nobody = invoke("doctor", "--redis-url", "redis://:geheim@127.0.0.1:1")

    assert (fine.returncode, fine.stdout) == (0, "redis: nothing found\n")
    assert bad.returncode == 1
    (error,) = [one for one in json.loads(bad.stdout)["findings"] if one["severity"] == "error"]
    assert error["check"] == "redis.persistence"
    assert "ERROR   redis.persistence: appendonly is off" in shown.stdout
    assert "        fix: CONFIG SET appendonly yes" in shown.stdout
    assert "NOTE    redis.client" in shown.stdout
    assert nobody.returncode == 2
    assert "geheim" not in nobody.stderr


def test_one_server_that_is_down_does_not_hide_what_is_wrong_with_the_others(
    invoke: Run, private_redis: Callable[..., RedisServer]
) -> None:
    done = invoke(
        "doctor", "--json",
        "--redis-url", private_redis().url,
        "--db-url", "mysql+pymysql://root@127.0.0.1:1/shop",
        "--rabbit-url", "amqp://127.0.0.1:1", "--rabbit-api", "http://127.0.0.1:1",
    )  # fmt: skip

    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert answer["unreachable"] == ["database", "rabbitmq"]
    assert [one["check"] for one in answer["findings"] if one["severity"] == "error"] == ["redis.persistence"]


def test_sqlite_is_named_for_what_it_is(invoke: Run) -> None:
    done = invoke("doctor", "--db-url", "sqlite://")

    assert done.returncode == 0
    assert "database.dialect: the database is sqlite" in done.stdout


def test_nothing_to_examine_says_how_to_name_something(invoke: Run) -> None:
    done = invoke("doctor")

    assert done.returncode == 2
    assert "there is nothing to examine" in done.stderr
