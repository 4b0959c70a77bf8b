"""Which operations share a statement."""

from conquiet.db.batch import MAX_BYTES, MAX_ROWS, grouped
from conquiet.db.models import DbOperation, DbOperationType


def insert(id_value: int, table: str = "orders", **payload: object) -> DbOperation:
    return DbOperation(table, DbOperationType.INSERT, id_value, {"id": id_value, **payload})


def sizes(*ops: DbOperation) -> list[int]:
    return [len(group) for group in grouped(ops)]


def test_neighbours_of_one_shape_travel_together() -> None:
    assert sizes(insert(1), insert(2), insert(3)) == [3]
    assert sizes() == []


def test_another_table_or_other_columns_begin_a_new_group() -> None:
    assert sizes(insert(1), insert(2, "invoices"), insert(3), insert(4, amount=1)) == [1, 1, 1, 1]


def test_an_update_is_always_alone_and_keeps_its_place() -> None:
    update = DbOperation("orders", DbOperationType.UPDATE, 1, {"id": 1})
    groups = list(grouped([insert(1), insert(2), update, update, insert(3)]))

    assert [len(group) for group in groups] == [2, 1, 1, 1]
    assert [group[0].op_type.value for group in groups] == ["insert", "update", "update", "insert"]


def test_groups_are_bounded_in_rows_and_bytes() -> None:
    assert sizes(*(insert(i) for i in range(MAX_ROWS + 1))) == [MAX_ROWS, 1]
    assert sizes(*(insert(i, note="x" * (MAX_BYTES // 2)) for i in range(3))) == [1, 1, 1]
    assert sizes(*(insert(i, note=b"x" * (MAX_BYTES // 4)) for i in range(4))) == [3, 1]
