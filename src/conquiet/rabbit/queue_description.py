"""Read the management API's description of a queue, and what a broker of some release does. Pure."""

from typing import Any, Final

DEFAULT_DELIVERY_LIMIT: Final = 20
"""The delivery limit of a quorum queue from RabbitMQ 4.0 on, unless it is set."""

_DEFAULT_LIMIT_SINCE: Final = (4, 0)
_NACK_IS_UNCOUNTED_SINCE: Final = (4, 3)


def queue_setting(description: Any, name: str) -> Any:
    """Return a setting such as ``dead-letter-exchange``: the queue's own argument, else its policy's, else None."""
    facts = description if isinstance(description, dict) else {}
    arguments, policy = facts.get("arguments"), facts.get("effective_policy_definition")
    own = arguments.get(f"x-{name}") if isinstance(arguments, dict) else None
    if own is not None:  # what a queue was declared with wins over its policy
        return own
    return policy.get(name) if isinstance(policy, dict) else None


def has_dead_letter_exchange(description: Any) -> bool:
    """Return whether the queue has one, by an argument or by a policy."""
    # The empty name is the default exchange, which is one: only a missing key means "none".
    return queue_setting(description, "dead-letter-exchange") is not None


def dead_letter_queue(description: Any) -> str | None:
    """Return the queue to which dead letters go by the default exchange; None if the bindings of another decide."""
    if queue_setting(description, "dead-letter-exchange") != "":
        return None
    # Without a key of its own a message keeps the one it was published with, which is not known here.
    key = queue_setting(description, "dead-letter-routing-key")
    return key if isinstance(key, str) and key else None


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def nack_is_uncounted(release: tuple[int, ...]) -> bool:
    """Return whether a quorum queue does not count a nack. A message beyond its limit is dropped all the same."""
    return release >= _NACK_IS_UNCOUNTED_SINCE


def delivery_limit(description: dict[str, Any], version: str) -> int | None:
    """Return after how many deliveries the broker drops or dead-letters a message; None for never."""
    if description.get("type") != "quorum":
        return None
    arguments, policy = description.get("arguments") or {}, description.get("effective_policy_definition") or {}
    given = (dict(arguments).get("x-delivery-limit"), dict(policy).get("delivery-limit"))
    limits = [limit for limit in given if isinstance(limit, int)]
    if not limits and release_of(version) >= _DEFAULT_LIMIT_SINCE:
        limits = [DEFAULT_DELIVERY_LIMIT]
    return min((limit for limit in limits if limit >= 0), default=None)  # from 4.0 on, -1 is no limit
