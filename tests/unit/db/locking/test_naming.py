"""Names of advisory locks: length, folding, difference."""

import string
from decimal import Context, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.db.locking.naming import canonical_id, lock_name, row_lock_name

NAME_CHARACTERS = set(string.printable) - set(string.ascii_uppercase) - set(string.whitespace) | {" "}


@pytest.mark.spec("CQ-005.22")
@given(prefix=st.text(max_size=100), table=st.text(max_size=130), id_value=st.text() | st.integers() | st.binary())
def test_a_lock_name_fits_mysql_and_has_no_upper_case(prefix: str, table: str, id_value: object) -> None:
    name = row_lock_name(prefix, table, id_value, default_schema="shop")

    assert len(name) <= 64
    assert set(name) <= NAME_CHARACTERS
    assert name == row_lock_name(prefix, table, id_value, default_schema="shop")


@pytest.mark.spec("CQ-005.22")
def test_a_lock_name_begins_with_prefix_and_table_and_includes_the_id() -> None:
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


LETTERS = st.text(string.ascii_lowercase, min_size=1, max_size=80)


@pytest.mark.spec("CQ-005.22")
@given(one=LETTERS, other=LETTERS, shared=LETTERS)
def test_two_ids_or_tables_that_differ_anywhere_have_two_names(one: str, other: str, shared: str) -> None:
    if one == other:
        return

    def name(table: str, id_value: str) -> str:
        return row_lock_name("conquiet_lock", table, id_value, default_schema="shop")

    assert name("orders", shared + one) != name("orders", shared + other)
    assert name(shared + one, "7") != name(shared + other, "7")


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


def test_tables_and_ids_that_join_alike_have_separate_lock_names() -> None:
    """The readable beginning is cut and the same for both: the digest alone separates them."""
    table = "orders_of_the_northern_branches_"

    one = row_lock_name("conquiet_lock", f"{table}1", 2, default_schema=None)
    other = row_lock_name("conquiet_lock", table, 12, default_schema=None)

    assert one != other
