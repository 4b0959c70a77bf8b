"""The retry limit guard: how often has the broker seen this message fail? Pure, and tolerant of anything.

The header ``x-death`` is written by the broker, newest entry first, one entry for each pair of queue and reason. It may
also be written by any publisher who likes, so every shape of it must be survived. SPEC(004 §2.1).
"""

from collections.abc import Mapping
from typing import Final

X_DEATH: Final = "x-death"
X_DELIVERY_COUNT: Final = "x-delivery-count"
X_ACQUIRED_COUNT: Final = "x-acquired-count"  # RabbitMQ 4.3: deliveries to any consumer, failed or not


def retry_count(headers: object) -> int:
    """Return ``headers['x-death'][0].count``, or 0 when there is no such thing.

    A missing or odd header counts as zero: taking a strange header for "exhausted" would drop a message that was never
    tried, and that is the worse loss.
    """
    deaths = headers.get(X_DEATH) if isinstance(headers, Mapping) else None
    if not isinstance(deaths, list) or not deaths:
        return 0
    newest = deaths[0]
    return _natural(newest.get("count")) if isinstance(newest, Mapping) else 0


def delivery_count(headers: object) -> int | None:
    """Return how often a quorum queue says it has taken this message back, None where it does not say."""
    value = headers.get(X_DELIVERY_COUNT) if isinstance(headers, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def is_exhausted(headers: object, max_retries: int | None) -> bool:
    """Return whether the retry count exceeds ``max_retries``. Never, unless a limit is configured."""
    return max_retries is not None and retry_count(headers) > max_retries


def _natural(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return 0
    return value
