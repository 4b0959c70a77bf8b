"""Count the failures of a message from the broker's headers, for the retry limit. Pure, and tolerant of any value.

The broker writes the header ``x-death``: newest entry first, one entry for each pair of queue and reason. Any publisher
can write it too, so no shape of it may cause an error. SPEC(004 §2.1).
"""

from collections.abc import Mapping
from typing import Final

X_DEATH: Final = "x-death"
X_DELIVERY_COUNT: Final = "x-delivery-count"
X_ACQUIRED_COUNT: Final = "x-acquired-count"  # RabbitMQ 4.3: deliveries to any consumer, failed or not
NOT_SENT_AGAIN: Final = ("CC", "BCC", X_DELIVERY_COUNT, X_ACQUIRED_COUNT)
"""Removed from a message that is sent again: other queues that have their copies, and the counts of its old queue."""


def retry_count(headers: object) -> int:
    """Return ``headers['x-death'][0].count``, or 0 if it is missing or malformed.

    A malformed header that counted as "exhausted" would drop a message that was never tried. That is the worse loss.
    """
    deaths = headers.get(X_DEATH) if isinstance(headers, Mapping) else None
    if not isinstance(deaths, list) or not deaths:
        return 0
    newest = deaths[0]
    return (isinstance(newest, Mapping) and _natural(newest, "count")) or 0


def delivery_count(headers: object) -> int | None:
    """Return how often the message was returned to its quorum queue, by the queue's count; None without a count."""
    return _natural(headers, X_DELIVERY_COUNT) if isinstance(headers, Mapping) else None


def _natural(table: Mapping[object, object], name: str) -> int | None:
    value = table.get(name)
    return None if isinstance(value, bool) or not isinstance(value, int) or value < 0 else value
