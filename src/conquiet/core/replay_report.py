"""The result of a replay of dead letters, for both brokers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Counts of a replay, or of a dry run.

    Attributes:
        matched: Selected dead letters.
        replayed: Dead letters that were replayed.
        gone: Dead letters that another process replayed or discarded first.
        unreplayable: Dead letters that stay. In Redis: not a message in the first place, nested too deeply to be read,
            or for a group that does not exist. In RabbitMQ: without a header that names their queue.
        dry_run: True if nothing was changed.
        rekeyed: Messages replayed to RabbitMQ with the name of their queue as routing key instead of the original one,
            because the user may not declare an exchange. If their queue dead-letters by the original key, they are
            discarded when they fail again.
    """

    matched: int = 0
    replayed: int = 0
    gone: int = 0
    unreplayable: int = 0
    dry_run: bool = False
    rekeyed: int = 0
