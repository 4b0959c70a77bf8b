"""The retry limit guard as a table: any shape of header, no broker."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.rabbit.death_headers import delivery_count, retry_count
from conquiet.rabbit.pipeline import EXHAUSTED, Pipeline

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["count", "x-death"]), inner),
    max_leaves=10,
)


@pytest.mark.spec("MW-002.2")
@pytest.mark.parametrize(
    ("headers", "count"),
    [
        ({"x-death": [{"count": 3, "queue": "work", "reason": "rejected"}, {"count": 9}]}, 3),
        ({"x-death": [{"count": 0}]}, 0),
        (None, 0),
        ({}, 0),
        ({"x-death": None}, 0),
        ({"x-death": []}, 0),
        ({"x-death": {}}, 0),
        ({"x-death": {"count": 7}}, 0),
        ({"x-death": "3"}, 0),
        ({"x-death": [None]}, 0),
        ({"x-death": [7]}, 0),
        ({"x-death": [{"queue": "work"}]}, 0),
        ({"x-death": [{"count": "3"}]}, 0),
        ({"x-death": [{"count": 3.0}]}, 0),
        ({"x-death": [{"count": True}]}, 0),
        ({"x-death": [{"count": -1}]}, 0),
        ({"x-death": [{}, {"count": 5}]}, 0),
        ("x-death", 0),
        ([{"count": 5}], 0),
    ],
)
def test_the_retry_count_is_that_of_the_newest_death(headers: Any, count: int) -> None:
    assert retry_count(headers) == count


@settings(deadline=None)
@given(st.none() | ANYTHING | st.fixed_dictionaries({"x-death": ANYTHING, "x-delivery-count": ANYTHING}))
def test_no_header_ever_raises(headers: Any) -> None:
    assert retry_count(headers) >= 0
    assert delivery_count(headers) is None or isinstance(headers, Mapping)


@pytest.mark.spec("MW-002.1", "MW-002.3")
@pytest.mark.parametrize(
    ("count", "limit", "exhausted"), [(3, 3, False), (4, 3, True), (0, 1, False), (2, 1, True), (1000, None, False)]
)
def test_only_more_than_the_limit_is_exhausted_and_only_with_a_limit(
    count: int, limit: int | None, *, exhausted: bool
) -> None:
    prepared = Pipeline(max_retries=limit).prepare({"x-death": [{"count": count}]}, b"{}")

    assert (prepared is EXHAUSTED) is exhausted


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        ({"x-delivery-count": 2}, 2),
        ({"x-delivery-count": 0}, 0),
        ({"x-delivery-count": True}, None),
        ({"x-delivery-count": "2"}, None),
        ({"x-delivery-count": -1}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_delivery_count_is_believed_only_when_it_is_one(headers: Any, count: int | None) -> None:
    assert delivery_count(headers) == count
