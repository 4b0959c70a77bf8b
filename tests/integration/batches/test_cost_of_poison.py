"""The cost of failing messages for the others of their batch, counted at the database server."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool
from tests.integration.batches.conftest import Database, MakeDatabase

from conquiet.db.session import DbSession
from conquiet.transactional import for_processor_batch

if TYPE_CHECKING:
    from collections.abc import Callable

INSERT = "INSERT INTO effects (message_id, cents) VALUES (:id, :cents)"
STATUS = text("SHOW SESSION STATUS WHERE Variable_name IN ('Com_commit', 'Com_rollback')")


@dataclass
class _Delivery:
    stream: str = "orders"

    def check_lease(self) -> None: ...


@dataclass
class _Context:
    """The attributes of a ``JobContext`` that a batch handler reads."""

    id: str
    data: dict[str, Any] = field(default_factory=dict)
    event: str = "paid"
    group: str = "processor"
    delivery: _Delivery = field(default_factory=_Delivery)


def transactions(engine: Engine) -> int:
    """Return how many transactions the server has ended on the engine's one connection."""
    with engine.connect() as connection:
        return sum(int(row[1]) for row in connection.execute(STATUS))


def contexts(count: int) -> list[_Context]:
    return [_Context(f"m{number:03}") for number in range(count)]


def rows(some: list[Any]) -> list[dict[str, Any]]:
    return [{"id": ctx.id, "cents": 1} for ctx in some]


@pytest.mark.parametrize("guilty", [{0}, {1}, {98}, {137}, {199}, {3, 77, 150}])
def test_poison_among_200_costs_one_transaction_more(guilty: set[int], make_database: MakeDatabase) -> None:
    database = make_database("mysql")
    engine = create_engine(database.url, poolclass=StaticPool, pool_reset_on_return=None)
    bad = {f"m{number:03}" for number in guilty}
    calls: list[int] = []

    def handle(some: list[Any], session: DbSession) -> None:
        calls.append(len(some))
        session.execute(INSERT, rows(some))
        if bad & {ctx.id for ctx in some}:
            raise ValueError(*sorted(bad & {ctx.id for ctx in some}))

    run = for_processor_batch(handle, engine=engine)
    assert run([_Context("before")]) is None  # the connection is open
    before = transactions(engine)
    assert run([_Context("whole"), _Context("batch")]) is None
    usual = transactions(engine) - before
    outcomes = run(contexts(200))
    cost = transactions(engine) - before - usual

    assert cost == usual + 1
    assert calls[2] == 200
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == sorted(guilty)
    assert {str(outcome) for outcome in outcomes if outcome is not None} == bad  # each has its own error
    assert len(calls) - 3 <= 10 * len(guilty)
    assert database.effects() == sorted({"before", "whole", "batch"} | {ctx.id for ctx in contexts(200)} - bad)
    assert database.count("conquiet_inbox") == 203 - len(bad)  # no row of what has had no effect
    engine.dispose()


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "sqlite"])
@pytest.mark.parametrize("of", ["engine", "sessionmaker"])
def test_a_statement_that_fails_for_one_message_takes_no_other_with_it(
    kind: str, of: str, make_database: MakeDatabase
) -> None:
    database = make_database(kind)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX one_each ON effects (message_id)"))
        connection.execute(text(INSERT), {"id": "m005", "cents": 0})

    def with_engine(some: list[Any], session: DbSession) -> None:
        session.execute(INSERT, rows(some))

    def with_maker(some: list[Any], session: Session) -> None:
        session.execute(text(INSERT), rows(some))

    run: Callable[..., Any] = (
        for_processor_batch(with_engine, engine=database.engine)
        if of == "engine"
        else for_processor_batch(with_maker, engine=sessionmaker(database.engine))
    )
    outcomes = run(contexts(20))

    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [5]
    assert database.effects() == [ctx.id for ctx in contexts(20)]
    assert database.count("conquiet_inbox") == 19


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
async def test_an_async_batch_keeps_the_effects_of_the_others(kind: str, make_database: MakeDatabase) -> None:
    database = make_database(kind)
    engine = create_async_engine(database.url.replace("+pymysql", "+asyncmy"))

    async def handle(some: list[Any], session: Any) -> None:
        await session.execute(text(INSERT), rows(some))
        if any(ctx.id in {"m003", "m011"} for ctx in some):
            raise KeyError

    outcomes = await for_processor_batch(handle, engine=engine)(contexts(20))
    await engine.dispose()

    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [3, 11]
    assert len(database.effects()) == database.count("conquiet_inbox") == 18


def test_a_check_of_a_call_that_was_rolled_back_is_dropped(mysql: Database) -> None:
    checked: list[int] = []

    def handle(some: list[Any], session: DbSession) -> None:
        size = len(some)
        session.before_commit(lambda _: checked.append(size))
        if any(ctx.id == "m002" for ctx in some):
            raise ValueError

    outcomes = for_processor_batch(handle, engine=mysql.engine)(contexts(4))

    assert [outcome is None for outcome in outcomes] == [True, True, False, True]
    assert sum(checked) == 3
