from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.rabbit.dead_delivery import describe, source_queue


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

    properties = SimpleNamespace(message_id=None, content_type=None)
    fetched: Any = SimpleNamespace(headers=headers, properties=properties, body=b"{}")
    assert describe(1, fetched, "dead").source == (queue or "")  # a dry run of replay() counts by this
