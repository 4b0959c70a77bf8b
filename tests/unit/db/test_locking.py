"""Lock backends without a server: the factory, the names, the order of several."""

import string
from decimal import Context, localcontext
from inspect import signature
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db.locking import (
    CompositeLockBackend,
    LockBackend,
    LockStrategy,
    MySQLAdvisoryLockBackend,
    MySQLRowLockBackend,
    MySQLTableLockBackend,
    make_lock_backend,
)
from conquiet.db.locking.naming import canonical_id, lock_name, row_lock_name
from conquiet.db.models import DbOperation, DbOperationType
from conquiet.errors import ConfigurationError, LockAcquisitionError

CONFIG = DbConfig("orders", id_column="order_no")
OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})
NO_CONNECTION = cast("Connection", None)


class RecordingLock(LockBackend):
    def __init__(self, name: str, log: list[str], *, fails: bool = False) -> None:
        self.name, self.log, self.fails = name, log, fails

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        if self.fails:
            raise LockAcquisitionError(f"{self.name} was not had")
        self.log.append(f"+{self.name}")

    def release(self, conn: Connection, op: DbOperation) -> None:
        self.log.append(f"-{self.name}")


@pytest.mark.spec("CQ-005.6", "CQ-005.7")
def test_the_strategies_are_those_of_the_seed_and_one_is_a_combination() -> None:
    assert issubclass(LockStrategy, str)
    assert {member.name: member.value for member in LockStrategy} == {
        "ADVISORY": "advisory",
        "ROW": "row",
        "ADVISORY_AND_ROW": "advisory_and_row",
        "TABLE": "table",
        "NONE": "none",
    }


@pytest.mark.spec("CQ-005.19", "CQ-005.18")
def test_a_backend_is_abstract_and_is_handed_a_connection_never_an_engine() -> None:
    assert LockBackend.__abstractmethods__ == {"acquire", "release"}
    for backend in (
        LockBackend,
        MySQLAdvisoryLockBackend,
        MySQLRowLockBackend,
        MySQLTableLockBackend,
        CompositeLockBackend,
    ):
        for method in (backend.acquire, backend.release):
            parameters = signature(method).parameters
            assert list(parameters) == ["self", "conn", "op"]
            assert parameters["conn"].annotation is Connection
        assert "engine" not in signature(backend.__init__).parameters


@pytest.mark.spec("CQ-005.20", "CQ-005.25", "CQ-008.2")
def test_the_backends_have_the_defaults_of_the_seed() -> None:
    advisory = MySQLAdvisoryLockBackend()

    assert (advisory.lock_timeout, advisory.prefix) == (10, "conquiet_lock")
    assert MySQLRowLockBackend().id_column == "id"
    assert MySQLTableLockBackend().lock_timeout == 10


@pytest.mark.spec("CQ-005.34", "CQ-005.31", "CQ-005.35", "CQ-005.36")
def test_the_factory_makes_the_backend_of_each_strategy() -> None:
    assert make_lock_backend(LockStrategy.NONE, CONFIG) is None
    assert type(make_lock_backend(LockStrategy.ADVISORY, CONFIG)) is MySQLAdvisoryLockBackend
    assert type(make_lock_backend(LockStrategy.TABLE, CONFIG)) is MySQLTableLockBackend
    row = make_lock_backend(LockStrategy.ROW, CONFIG)
    assert isinstance(row, MySQLRowLockBackend)
    assert row.id_column == "order_no"

    both = make_lock_backend(LockStrategy.ADVISORY_AND_ROW, CONFIG)
    assert isinstance(both, CompositeLockBackend)
    first, second = both.backends
    assert isinstance(first, MySQLAdvisoryLockBackend)
    assert isinstance(second, MySQLRowLockBackend)
    assert second.id_column == "order_no"


@pytest.mark.spec("CQ-005.37")
@pytest.mark.parametrize("strategy", ["advisory", "gap", None, 3])
def test_an_unknown_strategy_is_a_value_error(strategy: object) -> None:
    with pytest.raises(ValueError, match="lock_strategy must be a LockStrategy") as caught:
        make_lock_backend(strategy, CONFIG)  # type: ignore[arg-type]
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.spec("CQ-005.28")
def test_releasing_a_row_lock_touches_nothing() -> None:
    MySQLRowLockBackend().release(NO_CONNECTION, OP)


@pytest.mark.spec("CQ-005.32", "CQ-005.33", "CQ-008.2")
def test_several_locks_are_taken_in_order_and_given_back_in_reverse() -> None:
    log: list[str] = []
    both = CompositeLockBackend([RecordingLock("a", log), RecordingLock("b", log), RecordingLock("c", log)])

    both.acquire(NO_CONNECTION, OP)
    both.release(NO_CONNECTION, OP)

    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_a_lock_that_is_not_had_gives_back_those_before_it() -> None:
    log: list[str] = []
    both = CompositeLockBackend([RecordingLock("a", log), RecordingLock("b", log), RecordingLock("c", log, fails=True)])

    with pytest.raises(LockAcquisitionError, match="c was not had"):
        both.acquire(NO_CONNECTION, OP)

    assert log == ["+a", "+b", "-b", "-a"]


def test_a_composite_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        CompositeLockBackend([])


@pytest.mark.parametrize(
    "make",
    [
        lambda: MySQLAdvisoryLockBackend(lock_timeout=0),
        lambda: MySQLAdvisoryLockBackend(lock_timeout=True),
        lambda: MySQLAdvisoryLockBackend(prefix=""),
        lambda: MySQLRowLockBackend("id`; --"),
        lambda: MySQLTableLockBackend(-1),
    ],
)
def test_wrong_settings_of_a_backend_are_refused(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


# ------------------------------------------------------------------ names of advisory locks
NAME_CHARACTERS = set(string.printable) - set(string.ascii_uppercase) - set(string.whitespace) | {" "}


@pytest.mark.spec("CQ-005.22")
@given(prefix=st.text(max_size=100), table=st.text(max_size=130), id_value=st.text() | st.integers() | st.binary())
def test_a_lock_name_fits_mysql_and_has_no_upper_case(prefix: str, table: str, id_value: object) -> None:
    name = row_lock_name(prefix, table, id_value, default_schema="shop")

    assert len(name) <= 64
    assert set(name) <= NAME_CHARACTERS
    assert name == row_lock_name(prefix, table, id_value, default_schema="shop")


@pytest.mark.spec("CQ-005.22")
def test_a_lock_name_begins_with_prefix_and_table_and_depends_on_all_three() -> None:
    name = row_lock_name("conquiet_lock", "orders", 7, default_schema=None)

    assert name.startswith("conquiet_lock:orders:")
    assert (
        len(
            {
                name,
                row_lock_name("other", "orders", 7, default_schema=None),
                row_lock_name("conquiet_lock", "invoices", 7, default_schema=None),
                row_lock_name("conquiet_lock", "orders", 8, default_schema=None),
                row_lock_name("conquiet_lock", "orders", 7, default_schema="shop"),
            }
        )
        == 5
    )


def test_parts_do_not_run_into_each_other() -> None:
    assert lock_name("a", "b:c", "d") != lock_name("a", "b", "c:d")


def test_a_table_with_and_without_its_schema_is_one_table() -> None:
    assert row_lock_name("p", "orders", 1, default_schema="shop") == row_lock_name(
        "p", "Shop.Orders", 1, default_schema="elsewhere"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, "01"),
        (1, "1.0"),
        (1, True),
        (1, " 1 "),
        ("abc", "ABC"),
        ("abc", "abc "),
        ("abc", b"abc"),
        ("é", "e\u0301"),
        ("é", "E"),
        ("straße", "STRASSE"),
        (10**30, str(10**30)),
        ("1e3", 1000),
        (0, "-0"),
        ("Bjørn", "BJORN"),
        ("œuvre", "Oeuvre"),
        ("Łódź", "lodz"),
        ("あ", "ア"),
        ("a\u200bb", "ab"),
        ("a\x01b", "AB"),
        ("🙂", "🙃"),
        ("3e12345678901234", "30E12345678901233"),
    ],
)
def test_spellings_that_a_server_takes_for_one_row_give_one_id(one: object, other: object) -> None:
    """Too much folding costs a wait, too little lets two through to the row."""
    assert canonical_id(one) == canonical_id(other)


@given(st.one_of(st.text(), st.from_regex(r"-?[0-9]{1,40}([.][0-9]{1,40})?e-?[0-9]{1,40}", fullmatch=True)))
def test_every_id_has_a_name(id_value: str) -> None:
    assert canonical_id(id_value) == canonical_id(id_value.strip())


def test_an_applications_decimal_context_changes_no_name() -> None:
    with localcontext(Context(prec=6, Emax=9, capitals=0)):
        assert canonical_id("1234567") == canonical_id(1234567)
        assert canonical_id("1234567.5") == "1234567.5"
        assert canonical_id("1e999") == canonical_id("10E998")


@pytest.mark.parametrize(("one", "other"), [(1, 2), ("abc", "abd"), (1, "1a"), ("1e999999", "1"), ("nan", "inf")])
def test_different_rows_have_different_ids(one: object, other: object) -> None:
    assert canonical_id(one) != canonical_id(other)
