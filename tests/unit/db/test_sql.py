"""Statements: generated bind names, backticks, nothing from a value."""

from hypothesis import given
from hypothesis import strategies as st

from conquiet.db import sql

IDENTIFIERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_$]{0,20}", fullmatch=True)


def test_an_insert_names_columns_in_backticks_and_binds_by_position() -> None:
    assert str(sql.insert("shop.orders", ("id", "amount"))) == (
        "INSERT INTO `shop`.`orders` (`id`, `amount`) VALUES (:p0, :p1)"
    )


def test_an_update_keeps_its_condition_apart_from_its_values() -> None:
    """A column called like a bind of ours must not be able to replace it."""
    assert (
        str(sql.update("orders", ("w0", "p1"), "id")) == "UPDATE `orders` SET `w0` = :p0, `p1` = :p1 WHERE `id` = :w0"
    )


def test_the_same_shape_is_the_same_statement_object() -> None:
    """SQLAlchemy's cache of compiled statements then hits."""
    assert sql.insert("orders", ("id",)) is sql.insert("orders", ("id",))


@given(st.lists(IDENTIFIERS, min_size=1, max_size=8, unique_by=str.lower), IDENTIFIERS)
def test_each_value_has_its_own_bind_for_any_column_names(columns: list[str], id_column: str) -> None:
    payload = {column: object() for column in columns}
    statement = sql.update("orders", tuple(columns), id_column)

    binds = sql.values(payload, columns) | {"w0": "the id"}

    assert set(statement._bindparams) == set(binds)
    assert len(binds) == len(columns) + 1
