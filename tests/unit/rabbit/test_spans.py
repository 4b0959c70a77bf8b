from types import SimpleNamespace
from typing import Any

from conquiet.rabbit.settle import DeliveryFacts
from conquiet.rabbit.spans import process_span


def test_a_redelivery_without_a_failure_is_the_first_attempt() -> None:
    """RabbitMQ 4.3 counts failures only, as the log line of the message does."""
    started: list[dict[str, Any]] = []
    tracing: Any = SimpleNamespace(process=lambda *_, **facts: started.append(facts))
    facts = DeliveryFacts(redelivered=True, counts_failures=True)
    delivery: Any = SimpleNamespace(queue="work", message_id="m", headers=None, facts=facts)

    process_span(tracing, delivery)

    assert [each["attempt"] for each in started] == [1]
