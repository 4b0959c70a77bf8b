from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.rabbit import DeliveryFilter, RabbitDeadLetters
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


@pytest.mark.parametrize("where", ["all", None, {"source": "work"}, DeliveryFilter])
async def test_dead_letters_are_selected_by_a_filter_before_any_is_taken(where: Any) -> None:
    dead_letters = RabbitDeadLetters("amqp://127.0.0.1:1", "dead")

    for call in (dead_letters.list(where=where), dead_letters.replay(where), dead_letters.discard(where)):
        with pytest.raises(
            ConfigurationError, match=r"where must be a DeliveryFilter, got .*DeliveryFilter\(\) selects"
        ):
            await call


@pytest.mark.parametrize("limit", [0, -1, "3"])
async def test_a_limit_is_checked_before_a_message_is_taken(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit must be a positive integer"):
        await RabbitDeadLetters("amqp://127.0.0.1:1", "dead").list(limit=limit)


async def test_a_message_is_shown_by_a_text() -> None:
    wrong: Any = 1

    with pytest.raises(ConfigurationError, match="dead_id must be a non-empty string, got an int"):
        await RabbitDeadLetters("amqp://127.0.0.1:1", "dead").show(wrong)


@pytest.mark.parametrize("wrong", [{"message_id": 5}, {"source": ["work"]}, {"reason": b"expired"}])
def test_a_filter_that_could_match_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{min(wrong)} must be a string"):
        DeliveryFilter(**wrong)
