from typing import Any

import pytest

from conquiet.rabbit.dead_delivery import source_queue


@pytest.mark.parametrize(
    ("headers", "queue"),
    [
        ({"x-death": [{"queue": "work"}, {"queue": "older"}]}, "work"),
        ({"x-death": [{"queue": 7}]}, None),
        ({"x-death": [{"queue": "x" * 256}]}, None),  # no queue has it, and no replay would get past it
        ({"x-death": [{}]}, None),
        ({"x-death": "odd"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_dead_letter_says_where_it_died_last(headers: Any, queue: str | None) -> None:
    assert source_queue(headers, "dead") == queue
