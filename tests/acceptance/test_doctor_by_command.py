"""``conquiet doctor``: exit codes and output. tests/integration/management proves its findings."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis import Redis

from conquiet.testing import FaultProxy, RedisServer
from conquiet.testing.rabbitmq import RabbitMQServer

Run = Callable[..., Any]
EVERY_SECOND = ("--appendfsync", "everysec")


def test_healthy_is_0_an_error_is_1_and_no_server_is_2(
    run: Run, invoke: Run, private_redis: Callable[..., RedisServer]
) -> None:
    healthy, forgetful = private_redis(aof=True, extra_args=EVERY_SECOND), private_redis()

    fine = run("doctor", "--redis-url", healthy.url)
    bad = run("doctor", "--redis-url", forgetful.url, "--json")
    shown = invoke("doctor", "--redis-url", forgetful.url, "--notes")
    unreachable = invoke("doctor", "--redis-url", "redis://:geheim@127.0.0.1:1")

    assert (fine.returncode, fine.stdout) == (0, "redis: nothing found\n")
    assert bad.returncode == 1
    (error,) = [one for one in json.loads(bad.stdout)["findings"] if one["severity"] == "error"]
    assert error["check"] == "redis.persistence"
    assert "ERROR   redis.persistence: appendonly is off" in shown.stdout
    assert "        fix: CONFIG SET appendonly yes" in shown.stdout
    assert "NOTE    redis.client" in shown.stdout
    assert unreachable.returncode == 2
    assert "geheim" not in unreachable.stderr


def test_a_server_that_is_down_hides_no_findings_of_others(
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


def test_a_broker_without_amqp_is_unreachable_despite_its_management_api(
    invoke: Run, amqp_url: str, rabbitmq_server: RabbitMQServer
) -> None:
    api = ("--rabbit-api", rabbitmq_server.management_url)
    host = urlsplit(amqp_url)
    wrong = urlunsplit(host._replace(netloc=f"{host.username}:falsch@{host.hostname}:{host.port}"))

    fine = invoke("doctor", "--json", "--rabbit-url", amqp_url, *api)
    down = invoke("doctor", "--json", "--rabbit-url", "amqp://127.0.0.1:1", *api)
    refused = invoke("doctor", "--json", "--rabbit-url", wrong, *api)
    nowhere = invoke("doctor", "--json", "--rabbit-url", amqp_url, "--rabbit-api", "127.0.0.1:15672")

    assert (fine.returncode, json.loads(fine.stdout)["examined"]) == (0, ["rabbitmq"])
    for done in (down, refused, nowhere):
        assert (done.returncode, json.loads(done.stdout)["unreachable"]) == (2, ["rabbitmq"])
    assert "does not answer" in down.stderr
    assert "refused the user name or the password" in refused.stderr
    assert "falsch" not in refused.stderr
    assert "write it as http://" in nowhere.stderr


def test_one_server_that_refuses_a_question_does_not_end_the_examination(
    invoke: Run, private_redis: Callable[..., RedisServer], db_url: str
) -> None:
    redis = private_redis(aof=True, extra_args=EVERY_SECOND)
    with Redis.from_url(redis.url) as client:
        client.acl_setuser("few", enabled=True, passwords="+geheim", keys="*", commands=["+@all", "-info"])

    done = invoke(
        "doctor", "--json",
        "--redis-url", redis.url.replace("redis://", "redis://few:geheim@"),
        "--db-url", db_url,
    )  # fmt: skip

    answer = json.loads(done.stdout)
    assert (done.returncode, answer["unreachable"], answer["examined"]) == (2, ["redis"], ["database"])
    assert "INFO" in done.stderr
    assert "NOPERM" in done.stderr
    assert "mysql.tables" in {one["check"] for one in answer["findings"]}


def test_a_database_that_goes_away_meanwhile_is_one_sentence(
    invoke: Run, db_url: str, fault_proxy: Callable[[str], FaultProxy], private_redis: Callable[..., RedisServer]
) -> None:
    proxy = fault_proxy(db_url)
    proxy.drop_next_request(b"SHOW VARIABLES")

    # In plain text, so that the proxy can match the request.
    through = f"{proxy.url_for(db_url)}&ssl_disabled=true"

    done = invoke(
        "doctor", "--json", "--db-url", through, "--redis-url", private_redis(aof=True, extra_args=EVERY_SECOND).url
    )

    answer = json.loads(done.stdout)
    assert (done.returncode, answer["unreachable"], answer["examined"]) == (2, ["database"], ["redis"])
    assert "Traceback" not in done.stderr


def test_sqlite_is_named_for_what_it_is(invoke: Run) -> None:
    done = invoke("doctor", "--db-url", "sqlite:///shop.db")

    assert done.returncode == 0
    assert "database.dialect: the database is sqlite" in done.stdout


def test_nothing_to_examine_says_how_to_name_something(invoke: Run) -> None:
    done = invoke("doctor")

    assert done.returncode == 2
    assert "there is nothing to examine" in done.stderr


def test_the_urls_of_a_cluster_name_one_vhost(
    invoke: Run, amqp_url: str, rabbitmq_server: RabbitMQServer, declare: Callable[..., None]
) -> None:
    """The later nodes were read as a part of the vhost's name, and the broker could not be examined."""
    declare("orders")
    nodes = f"{amqp_url},amqp://127.0.0.1:1/other"
    servers = ("--rabbit-url", nodes, "--rabbit-api", rabbitmq_server.management_url)

    examined = invoke("doctor", "--queue", "orders", *servers)

    assert examined.returncode == 0, examined.stdout + examined.stderr
