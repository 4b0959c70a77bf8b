import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core.backoff import Backoff
from conquiet.core.validation import (
    require_bool,
    require_identifier,
    require_instance,
    require_positive,
    require_seconds,
    require_table,
    require_text,
)
from conquiet.errors import ConfigurationError


@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, "1", None, math.nan])
def test_only_a_positive_int_is_positive(value: object) -> None:
    with pytest.raises(ConfigurationError, match="block_ms must be a positive integer, got "):
        require_positive("block_ms", value)


def test_a_positive_int_is_returned() -> None:
    assert require_positive("block_ms", 5_000) == 5_000


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1", None, 0, 10**400])
def test_seconds_are_finite_and_above_zero(value: object) -> None:
    with pytest.raises(ConfigurationError, match="grace_s must be a positive number of seconds"):
        require_seconds("grace_s", value)


def test_zero_seconds_can_be_allowed() -> None:
    assert require_seconds("grace_s", 0, zero_allowed=True) == 0.0


@pytest.mark.parametrize("value", ["", "   ", None, b"orders", 7, "or\nders", "or\x00ders", "or\ud800ders"])
def test_text_has_something_visible_and_no_control_character(value: object) -> None:
    with pytest.raises(ConfigurationError, match="stream_key"):
        require_text("stream_key", value)


def test_a_refused_string_is_not_shown_because_it_may_be_a_secret() -> None:
    for check in (require_positive, require_seconds, require_identifier, require_table):
        with pytest.raises(ConfigurationError) as caught:
            check("setting", "hunter 2; DROP TABLE")
        assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("value", ["orders", "_x", "a$1", "A" * 64])
def test_plain_identifiers_pass(value: str) -> None:
    assert require_identifier("id_column", value) == value


@pytest.mark.parametrize("value", ["shop.orders", "orders"])
def test_a_table_may_carry_its_schema(value: str) -> None:
    assert require_table("table_name", value) == value


@pytest.mark.parametrize(
    "value", ["", "1a", "a b", "a`b", "a;b", "a.b", "A" * 65, "naïve", "a\n", "orders--", None, 3, ":id"]
)
def test_hostile_identifiers_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="plain SQL identifier"):
        require_identifier("id_column", value)


@pytest.mark.parametrize("value", ["a.b.c", ".a", "a.", ".", "a.b`", "a b.c", None])
def test_hostile_tables_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"schema\.table"):
        require_table("table_name", value)


@given(st.text())
def test_an_accepted_identifier_needs_no_escaping(value: str) -> None:
    try:
        passed = require_identifier("id_column", value)
    except ConfigurationError:
        return
    assert passed.isascii()
    assert not set(passed) & set("`'\"; .\\:%\n\x00")


def test_a_whole_number_may_be_zero_or_have_a_maximum() -> None:
    assert require_positive("keep_min", 0, zero_allowed=True) == 0
    assert require_positive("batch", 9, most=9) == 9
    with pytest.raises(ConfigurationError, match="keep_min must be a whole number, zero or more, got -1"):
        require_positive("keep_min", -1, zero_allowed=True)
    with pytest.raises(ConfigurationError, match="batch must be at most 9, got 10"):
        require_positive("batch", 10, most=9)


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_only_true_and_false_are_a_choice(value: object) -> None:
    require_bool("recover", False)  # noqa: FBT003 - the value under test
    with pytest.raises(ConfigurationError, match="recover must be True or False, got "):
        require_bool("recover", value)


@pytest.mark.parametrize("value", [Backoff, None, {}])
def test_an_object_is_of_its_class_and_not_the_class_itself(value: object) -> None:
    given = Backoff()
    assert require_instance("backoff", given, Backoff) is given
    with pytest.raises(ConfigurationError, match="backoff must be a Backoff, got "):
        require_instance("backoff", value, Backoff)
