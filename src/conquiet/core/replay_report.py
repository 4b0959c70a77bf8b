"""How a replay of dead letters ended, on either broker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did, or in a dry run would do.

    Attributes:
        matched: Dead letters that were selected.
        replayed: Those that were brought back.
        gone: Those that another process replayed or discarded meanwhile.
        unreplayable: Those that stay. In Redis they were no message in the first place, are nested deeper than can be
            read, or are for a group that does not exist. In RabbitMQ they do not say in which queue they died.
        dry_run: True if nothing was done.
        rekeyed: How many of those replayed to RabbitMQ have their queue's name as routing key and not the one they were
            published with, because the user may not make an exchange. If their queue dead-letters by the original key,
            they are discarded when they fail again.
    """

    matched: int = 0
    replayed: int = 0
    gone: int = 0
    unreplayable: int = 0
    dry_run: bool = False
    rekeyed: int = 0
