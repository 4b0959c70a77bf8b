"""List, replay and discard the messages of RabbitMQ dead-letter queues. Needs the extra ``rabbit``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conquiet.core.replay_report import ReplayReport
    from conquiet.rabbit import DeadDelivery


async def list_dead(url: str, api_url: str, queue: str, *, limit: int) -> "Sequence[DeadDelivery]":
    """Return the first messages of a dead-letter queue. They remain there and are marked as redelivered.

    Raises:
        PeekUnsafeError: Reading would count toward a delivery limit, or delete messages. No message was read.
    """
    found: Sequence[DeadDelivery] = await _queue(url, api_url, queue).list(limit=limit)
    return found


async def replay_dead(
    url: str, api_url: str, queue: str, *, message_id: str = "", source: str = "", limit: int, dry_run: bool
) -> "ReplayReport":
    """Publish dead messages to their source queues; each is acknowledged once its copy is confirmed."""
    where = _where(message_id, source)
    report: ReplayReport = await _queue(url, api_url, queue).replay(where, limit=limit, dry_run=dry_run)
    return report


async def discard_dead(
    url: str, api_url: str, queue: str, *, message_id: str = "", source: str = "", limit: int, dry_run: bool
) -> int:
    """Delete dead messages; return how many."""
    where = _where(message_id, source)
    return int(await _queue(url, api_url, queue).discard(where, limit=limit, dry_run=dry_run))


def _queue(url: str, api_url: str, queue: str) -> Any:
    from conquiet.rabbit import RabbitDeadLetters

    return RabbitDeadLetters(url, queue, management_url=api_url)


def _where(message_id: str, source: str) -> Any:
    from conquiet.rabbit import DeliveryFilter

    return DeliveryFilter(message_id=message_id or None, source=source or None)
