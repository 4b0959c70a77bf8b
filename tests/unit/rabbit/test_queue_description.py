from typing import Any

import pytest

from conquiet.errors import RabbitError
from conquiet.rabbit.dead_delivery import source_queue
from conquiet.rabbit.dead_letter_check import describe_queue
from conquiet.rabbit.queue_description import has_dead_letter_exchange


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"arguments": {"x-dead-letter-exchange": "dlx"}}, True),
        ({"arguments": {"x-dead-letter-exchange": ""}}, True),
        ({"arguments": {}, "effective_policy_definition": {"dead-letter-exchange": "dlx"}}, True),
        ({"arguments": {}, "effective_policy_definition": {}}, False),
        ({"arguments": [], "effective_policy_definition": None}, False),
        (None, False),
    ],
)
def test_a_dead_letter_exchange_is_read_from_arguments_or_policy(description: Any, *, expected: bool) -> None:
    assert has_dead_letter_exchange(description) is expected


def test_a_management_api_that_is_not_there_is_named_without_its_password(closed_port: int) -> None:
    with pytest.raises(RabbitError) as caught:
        describe_queue(f"http://guest:s3cret@127.0.0.1:{closed_port}", "/", "work")

    assert "s3cret" not in str(caught.value)


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
