"""The history of a queue: the broker's samples, oldest first, counters as increments."""

from typing import Any

from conquiet.management.rabbit_queues import RabbitView

REPLY = {
    # As RabbitMQ 3.10 replies: the newest sample first, and totals for the counters.
    "name": "orders",
    "messages_details": {"avg": 1.5, "samples": [{"sample": 4, "timestamp": 120}, {"sample": 3, "timestamp": 60}]},
    "message_stats": {
        "publish_details": {
            "samples": [
                {"sample": 2, "timestamp": 180},
                {"sample": 15, "timestamp": 120},
                {"sample": 10, "timestamp": 60},
            ]
        },
        "ack_details": {"samples": [{"sample": 7, "timestamp": 120}, {"sample": 7, "timestamp": 60}]},
    },
}


class Recorded:
    """Replaces the management API."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.asked = ""

    def request(self, _method: str, path: str, *, missing_ok: bool) -> Any:
        assert missing_ok
        self.asked = path
        return self._reply


def history_of(reply: Any) -> tuple[Any, str]:
    view, api = RabbitView("amqp://127.0.0.1/shop"), Recorded(reply)
    view._api = api  # type: ignore[assignment]
    return view.history("orders/eu"), api.asked


def test_a_queues_hour_is_in_order_and_counts_what_was_added() -> None:
    found, asked = history_of(REPLY)

    assert found.depth == (3, 4)
    assert found.published == (5, 0)  # the broker was restarted after 15: its counter began again
    assert found.acknowledged == (0,)
    assert asked.startswith("/api/queues/shop/orders%2Feu?")


def test_a_queue_without_samples_has_an_empty_history() -> None:
    """A queue that is missing has none."""
    found, _ = history_of({"name": "orders"})

    assert (found.depth, found.published, found.acknowledged) == ((), (), ())
    assert history_of(None)[0] is None
