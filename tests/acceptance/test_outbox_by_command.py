"""``conquiet outbox``, ``conquiet db`` and ``conquiet doctor`` on each database."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, inspect

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.transactional import Inbox, InboxKey, Outbox, OutboxMessage, OutboxRelay, PublishOutcome

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=["mysql", "postgresql", "sqlite"])
def url(
    request: pytest.FixtureRequest, db_url: str, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    file = tmp_path_factory.mktemp("db") / "shop.db"
    return {"mysql": db_url, "postgresql": postgres_url, "sqlite": f"sqlite:///{file}"}[request.param]


@pytest.fixture
def env(url: str) -> dict[str, str]:
    return {"CONQUIET_DB_URL": url}


@pytest.fixture
def engine(url: str, invoke: Run, env: dict[str, str]) -> Iterator[Engine]:
    assert invoke("db", "init", env=env).returncode == 0
    made = create_engine(url)
    yield made
    made.dispose()


class Refusing:
    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        return [(PublishOutcome.REFUSED, "too large")] * len(messages)


def park(engine: Engine, *targets: str) -> None:
    """Write a message for each target and let it be refused."""
    with DbSession(engine) as session:
        for target in targets:
            Outbox().add(session, target, {})
    with OutboxRelay(
        engine, dict.fromkeys(targets, Refusing()), max_attempts=1, backoff=Backoff(base_s=0.0, cap_s=0.0)
    ) as relay:
        relay.drain()


def test_db_init_creates_the_tables_twice_without_harm(engine: Engine, invoke: Run, env: dict[str, str]) -> None:
    assert invoke("db", "init", env=env).returncode == 0
    assert set(inspect(engine).get_table_names()) >= {"conquiet_inbox", "conquiet_outbox"}


def test_the_outbox_is_listed_by_target(engine: Engine, invoke: Run, env: dict[str, str]) -> None:
    empty = invoke("outbox", "list", env=env)
    with DbSession(engine) as session:
        Outbox().add(session, "mail", {})
        Outbox().add(session, "mail", {}, delay_s=600)
    park(engine, "ledger")

    listed = invoke("outbox", "list", env=env)
    found = {one["target"]: one for one in json.loads(invoke("outbox", "list", "--json", env=env).stdout)["targets"]}

    assert empty.stdout == "the outbox is empty\n"
    assert listed.stdout.splitlines()[0].split("\t") == ["target", "waiting", "oldest_age_s", "parked"]
    assert (found["mail"]["waiting"], found["mail"]["parked"]) == (2, 0)
    assert found["mail"]["oldest_age_s"] >= 0
    assert (found["ledger"]["waiting"], found["ledger"]["parked"]) == (0, 1)


def test_parked_messages_are_shown_and_released(engine: Engine, invoke: Run, env: dict[str, str]) -> None:
    park(engine, "mail", "ledger", "ledger")
    shown = json.loads(invoke("outbox", "parked", "--json", env=env).stdout)["parked"]
    mail = next(one["seq"] for one in shown if one["target"] == "mail")

    one = invoke("outbox", "unpark", str(mail), "--json", env=env)
    again = invoke("outbox", "unpark", str(mail), env=env)
    rest = invoke("outbox", "unpark", "--all", "--target", "ledger", env=env)

    assert {one["reason"] for one in shown} == {"too large"}
    assert (one.returncode, json.loads(one.stdout)) == (0, {"released": 1})
    assert (again.returncode, again.stdout) == (1, "0 released\n")
    assert rest.stdout == "2 released\n"
    assert invoke("outbox", "parked", env=env).stdout == "nothing is parked\n"


def test_the_size_of_the_inbox_is_shown(engine: Engine, invoke: Run, env: dict[str, str]) -> None:
    with DbSession(engine) as session:
        for number in range(3):
            Inbox().record(session, InboxKey("orders", "billing", str(number)))

    status = json.loads(invoke("db", "status", "--json", env=env).stdout)
    table = invoke("db", "status", env=env).stdout

    assert (status["inbox"]["rows"], status["inbox"]["complete"]) == (3, True)
    assert status["outbox"] == {"waiting": 0, "parked": 0}
    assert "conquiet_inbox\t3" in table


def test_a_missing_table_names_the_command_that_creates_it(url: str, invoke: Run, env: dict[str, str]) -> None:
    for words in (("outbox", "list"), ("outbox", "parked"), ("db", "status")):
        done = invoke(*words, env=env)
        assert done.returncode == 1, words
        assert "conquiet db init" in done.stderr, words


def test_unpark_needs_numbers_or_all(invoke: Run) -> None:
    for words in ((), ("1", "--all"), ("1", "--target", "mail")):
        done = invoke("outbox", "unpark", *words, "--db-url", "sqlite:///x.db")
        assert done.returncode == 2, words
        assert "name the messages, or all of them" in done.stderr


def test_the_statements_of_each_database_can_be_printed(invoke: Run) -> None:
    for database, expected in (("postgresql", '"my_inbox"'), ("sqlite", "`my_inbox`"), ("mysql", "`my_inbox`")):
        done = invoke("db", "init", "--sql", "--database", database, "--inbox", "my_inbox")
        assert f"CREATE TABLE IF NOT EXISTS {expected}" in done.stdout
    assert invoke("db", "init", "--sql", "--database", "oracle").returncode == 2


def test_doctor_examines_postgresql(run: Run, invoke: Run, postgres_url: str) -> None:
    env = {"CONQUIET_DB_URL": postgres_url}
    before = json.loads(run("doctor", "--json", env=env).stdout)["findings"]
    assert invoke("db", "init", env=env).returncode == 0
    after = json.loads(invoke("doctor", "--json", env=env).stdout)["findings"]
    engine = create_engine(postgres_url)
    with DbSession(engine) as session:
        Outbox().add(session, "leger", {})
        session.execute("UPDATE conquiet_outbox SET created_at = '2026-01-01', due_at = '2026-01-01'")
    engine.dispose()
    (overdue,) = [
        one
        for one in json.loads(invoke("doctor", "--json", env=env).stdout)["findings"]
        if one["check"] == "postgres.outbox_overdue"
    ]

    assert "postgres.tables" in {one["check"] for one in before}
    assert "'leger'" in overdue["what"]
    # The servers of the tests run without fsync.
    assert {one["check"] for one in after} <= {"postgres.durability", "postgres.long_transactions"}
