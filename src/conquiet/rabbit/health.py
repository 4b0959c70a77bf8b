"""What a consumer of RabbitMQ reports about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RabbitHealth:
    """What a consumer reports about itself.

    Attributes:
        ready: True while it is connected and consumes.
        reason: Why it is not ready; empty while it is.
    """

    ready: bool
    reason: str = ""
