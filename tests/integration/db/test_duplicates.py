"""Duplicate rows, and the column that is the id: on real servers."""

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy, WriteOutcome, occ_update
from conquiet.db.statement_execution import _for_driver
from conquiet.errors import ConfigurationError, DbWriteError

INSERT, UPDATE = DbOperationType.INSERT, DbOperationType.UPDATE


@pytest.fixture
def people(admin: Connection) -> str:
    admin.execute(text("CREATE TABLE people (id INT PRIMARY KEY AUTO_INCREMENT, email VARCHAR(50) UNIQUE)"))
    admin.execute(text("INSERT INTO people VALUES (1, 'a'), (2, 'b'), (5, 'taken')"))
    return "people"


def emails(admin: Connection) -> list[str]:
    return list(admin.execute(text("SELECT email FROM people ORDER BY id")).scalars())


@pytest.mark.spec("CQ-005.10", "CQ-005.12")
def test_a_duplicate_is_raised_if_the_id_was_not_written(engine: Engine, admin: Connection, people: str) -> None:
    """The database makes the ids. Rows that have these ids by chance are not the requested rows."""
    writer = DbWriter(engine, DbConfig(people))

    def new(id_value: int, email: str) -> DbOperation:
        return DbOperation(people, INSERT, id_value, {"email": email})

    with pytest.raises(DbWriteError) as alone:
        writer.execute(new(1, "taken"))
    with pytest.raises(DbWriteError) as together:
        writer.execute_many([new(1, "c"), new(2, "taken"), new(5, "d")])

    assert (alone.value.errno, together.value.errno) == (1062, 1062)
    assert together.value.completed == 1
    assert emails(admin) == ["a", "b", "taken", "c"]


@pytest.mark.spec("CQ-005.54")
def test_an_update_never_sets_the_id_however_it_is_spelled(engine: Engine, admin: Connection, people: str) -> None:
    writer = DbWriter(engine, DbConfig(people), LockStrategy.ROW)

    assert writer.execute(DbOperation(people, UPDATE, 1, {"ID": 77, "email": "new"})) == WriteOutcome(rows=1)
    assert writer.execute(DbOperation(people, UPDATE, 1, {"Id": 77})) == WriteOutcome(rows=0)
    assert writer.modify(2, lambda _: {"iD": 77, "email": "newer"}) == WriteOutcome(rows=1)

    rows = admin.execute(text("SELECT id, email FROM people ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [(1, "new"), (2, "newer"), (5, "taken")]


@pytest.mark.spec(
    "CQ-003.1", "CQ-005.10", "CQ-005.12", "CQ-005.14", "CQ-005.26", "CQ-005.35", "CQ-005.54", "CQ-005.16",
)  # fmt: skip
@pytest.mark.parametrize("strategy", LockStrategy)
def test_rows_are_found_by_the_configured_column_and_not_by_id(
    engine: Engine, admin: Connection, strategy: LockStrategy
) -> None:
    """The table has a column ``id`` too, in which each row has the number of the other."""
    admin.execute(text("CREATE TABLE bills (number INT PRIMARY KEY, id INT UNIQUE, paid INT NOT NULL DEFAULT 0)"))
    writer = DbWriter(engine, DbConfig("bills", id_column="number"), strategy)

    def new(number: int, id_: int) -> DbOperation:
        return DbOperation("bills", INSERT, number, {"number": number, "id": id_})

    assert writer.execute_many([new(1, 2), new(2, 1)]) == [WriteOutcome(rows=1)] * 2
    assert writer.execute(new(1, 9)).duplicate
    assert [outcome.duplicate for outcome in writer.execute_many([new(1, 8), new(2, 9), new(3, 30)])] == [1, 1, 0]
    with pytest.raises(DbWriteError) as caught:
        writer.execute(new(30, 30))  # no row has this number, although one has it as its id
    assert caught.value.errno == 1062
    assert writer.execute(DbOperation("bills", UPDATE, 1, {"number": 7, "paid": 10})).rows == 1
    assert writer.modify(2, lambda row: {"paid": 10 * row["number"]}).rows == 1
    assert writer.execute(DbOperation("bills", UPDATE, 3, {"paid": 30})).rows == 1  # no row has this id
    assert writer.execute(DbOperation("bills", UPDATE, 30, {"paid": 1})).rows == 0
    assert writer.modify(30, lambda _: pytest.fail("there is no row")).rows == 0

    found = admin.execute(text("SELECT number, id, paid FROM bills ORDER BY number")).all()
    assert [tuple(row) for row in found] == [(1, 2, 10), (2, 1, 20), (3, 30, 30)]


def test_an_insert_knows_its_id_however_it_is_spelled(engine: Engine, admin: Connection, people: str) -> None:
    writer = DbWriter(engine, DbConfig(people))
    ops = [DbOperation(people, INSERT, id_value, {"ID": id_value, "email": f"new {id_value}"}) for id_value in (1, 9)]

    with pytest.raises(DbWriteError, match="name different rows"):
        writer.execute(DbOperation(people, INSERT, 8, {"Id": 7}))
    with pytest.raises(DbWriteError, match="name different rows"):
        writer.execute_many([ops[1], DbOperation(people, INSERT, 8, {"ID": 7, "email": "x"})])

    assert writer.execute_many(ops) == [WriteOutcome(rows=0, duplicate=True), WriteOutcome(rows=1)]
    assert writer.execute(ops[1]) == WriteOutcome(rows=0, duplicate=True)
    assert emails(admin) == ["a", "b", "taken", "new 9"]


def test_the_version_is_raised_by_one_however_it_is_spelled(engine: Engine) -> None:
    with DbSession(engine) as session, pytest.raises(ConfigurationError, match="must not set the version"):
        occ_update(session, "orders", 1, {"VERSION": 9}, expected_version=1)


def test_batches_of_duplicates_leave_no_statement_behind(engine: Engine) -> None:
    """Each would stay in the cache, with its thousand binds."""
    writer = DbWriter(engine, DbConfig("orders"))
    ops = [DbOperation("orders", INSERT, id_value, {"id": id_value}) for id_value in range(50)]
    writer.execute_many(ops)
    kept = _for_driver.cache_info().currsize

    for count in (50, 49, 50):
        assert writer.execute_many(ops[:count]) == [WriteOutcome(rows=0, duplicate=True)] * count

    assert _for_driver.cache_info().currsize == kept
