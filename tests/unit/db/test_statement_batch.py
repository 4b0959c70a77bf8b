"""Operations that share a statement."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conquiet.db.models import DbOperation, DbOperationType
from conquiet.db.statement_batch import MAX_BYTES, MAX_ROWS, Rows, group_operations


def insert(id_value: int, table: str = "orders", **payload: object) -> DbOperation:
    return DbOperation(table, DbOperationType.INSERT, id_value, {"id": id_value, **payload})


def of(payload: Mapping[str, Any]) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, payload["id"], payload)


def ops_of(group: DbOperation | Rows) -> list[DbOperation]:
    return list(group.ops) if isinstance(group, Rows) else [group]


def sizes(*ops: DbOperation) -> list[int]:
    return [len(ops_of(group)) for group in group_operations(ops)]


def test_neighbours_of_one_shape_share_a_statement() -> None:
    assert sizes(insert(1), insert(2), insert(3)) == [3]
    assert sizes() == []


def test_another_table_or_other_columns_begin_a_new_group() -> None:
    assert sizes(insert(1), insert(2, "invoices"), insert(3), insert(4, amount=1)) == [1, 1, 1, 1]
    assert sizes(insert(1, amount=1), insert(2, amount=1), insert(3, status="x")) == [2, 1]
    assert sizes(insert(1), insert(2, amount=1)) == [1, 1], "a column more must not be left out"


def test_an_update_is_always_alone_and_keeps_its_place() -> None:
    update = DbOperation("orders", DbOperationType.UPDATE, 1, {"id": 1})
    groups = [ops_of(group) for group in group_operations([insert(1), insert(2), update, update, insert(3)])]

    assert [len(group) for group in groups] == [2, 1, 1, 1]
    assert [group[0].op_type.value for group in groups] == ["insert", "update", "update", "insert"]


def test_groups_are_bounded_in_rows_and_bytes() -> None:
    assert sizes(*(insert(i) for i in range(MAX_ROWS + 1))) == [MAX_ROWS, 1]
    assert sizes(*(insert(i, note="x" * (MAX_BYTES // 2)) for i in range(3))) == [1, 1, 1]
    assert sizes(*(insert(i, note=b"x" * (MAX_BYTES // 4)) for i in range(4))) == [3, 1]
    assert sizes(*(insert(i, note=None if i else "x" * MAX_BYTES) for i in range(3))) == [1, 2]


def test_a_column_in_another_place_is_the_same_column() -> None:
    groups = list(
        group_operations([of({"id": 1, "amount": 10, "status": "a"}), of({"status": "b", "id": 2, "amount": 20})])
    )

    assert len(groups) == 1
    assert isinstance(groups[0], Rows)
    assert groups[0].columns == ("id", "amount", "status")
    assert groups[0].flatten() == [1, 10, "a", 2, 20, "b"]


def test_a_defaultdict_is_not_asked_for_missing_keys() -> None:
    """A defaultdict would return a value for a column that was not written, and keep it."""
    odd = defaultdict(int, {"id": 2, "other": 1})

    assert sizes(of({"id": 1, "amount": 1}), of(odd)) == [1, 1]
    assert odd == {"id": 2, "other": 1}


def test_only_columns_of_integers_are_written_as_digits() -> None:
    class Colour(IntEnum):
        RED = 7

    rows = Rows.of(
        [
            of({"id": -1, "hostile": "%s'); --", "flag": True, "colour": Colour.RED, "maybe": 1, "n": 10**30}),
            of({"id": 2, "hostile": "", "flag": False, "colour": Colour.RED, "maybe": None, "n": 0}),
        ]
    )

    assert rows.inline_integers() == (
        f"(-1, %s, %s, %s, %s, {10**30}), (2, %s, %s, %s, %s, 0)",
        ["%s'); --", True, Colour.RED, 1, "", False, Colour.RED, None],
    )
    assert rows.placeholders() == "(%s, %s, %s, %s, %s, %s), (%s, %s, %s, %s, %s, %s)"
    assert Rows.of([insert(1), insert(2)]).inline_integers() == ("(1), (2)", [])


def test_the_repr_of_a_group_shows_no_value() -> None:
    (group,) = group_operations([insert(1, email="canary@example.org"), insert(2, email="canary@example.org")])

    assert repr(group) == "Rows(2 of orders)"


payloads = st.dictionaries(st.sampled_from(["id", "a", "b"]), st.one_of(st.none(), st.integers(), st.text(max_size=3)))


@given(
    st.lists(
        st.builds(
            DbOperation,
            st.sampled_from(["t", "u"]),
            st.sampled_from(DbOperationType),
            st.integers(),
            st.one_of(payloads, payloads.map(OrderedDict)),
        )
    )
)
def test_grouping_keeps_order_and_each_group_has_one_shape(ops: list[DbOperation]) -> None:
    groups = list(group_operations(ops))

    assert [id(op) for group in groups for op in ops_of(group)] == [id(op) for op in ops]
    for group in groups:
        if isinstance(group, Rows):
            assert {op.op_type for op in group.ops} == {DbOperationType.INSERT}
            assert {op.table for op in group.ops} == {group.table}
            assert all(op.payload.keys() == set(group.columns) for op in group.ops)
            assert group.flatten() == [op.payload[column] for op in group.ops for column in group.columns]
