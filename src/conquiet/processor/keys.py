"""Names of the Redis keys that belong to a stream, all in the cluster slot of the stream. Pure.

Redis Cluster hashes only the text between the first ``{`` and the next ``}`` of a key, unless it is
empty. So ``{orders}:delayed`` is in the slot of ``orders``, and a stream that has a hash tag
(``shop:{7}:orders``) only gets a suffix. One script may then access all of these keys.
"""

from dataclasses import dataclass

from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.redis_transport.hash_tags import slot_prefix


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one stream.

    Attributes:
        stream: The stream.
        delayed: Sorted set of delayed messages, by due time in milliseconds.
        dead: Stream of dead letters.
        paused: Hash of pauses: ``*`` for the whole stream, or an event; the value is the start of the pause.
        parked: Set of events with messages that are parked because of a pause.
        order: Hash of the ticket of each key's holder, and prefix of further keys. See ``lua/ordering.lua``.
        wake: Stream with one entry, which is replaced to make hosts poll: an earlier due time, a pause.
        base: Prefix of the other keys.
    """

    stream: str
    delayed: str
    dead: str
    paused: str
    parked: str
    order: str
    wake: str
    base: str

    def emitted(self, message_id: str) -> str:
        """Return the key that exists while this id counts as emitted."""
        return f"{self.base}:emitted:{message_id}"

    def debounce(self, event: str, name: str) -> str:
        """Return the key that holds the delayed message of a debounced event.

        The length marks the end of the event, because both parts may contain colons.
        """
        return f"{self.base}:debounce:{len(event)}:{event}:{name}"

    def parked_event(self, event: str) -> str:
        """Return the list of messages parked while this event is paused."""
        return f"{self.base}:parked:{event}"

    @property
    def waiting_keys(self) -> str:
        """Return the sorted set of keys with waiting messages, by their number."""
        return f"{self.order}:waiting"

    def waiting(self, key: str) -> str:
        """Return the list of messages that wait for a key. ``key`` is in its JSON encoding."""
        return f"{self.order}:key:{key}"

    def rate(self, event: str) -> str:
        """Return the key that holds the next free start of a rate-limited event."""
        return f"{self.base}:rate:{event}"

    def job(self, message_id: str) -> str:
        """Return the hash that holds the state of one job."""
        return f"{self.base}:job:{message_id}"

    def jobs(self, state: str) -> str:
        """Return the sorted set of the ids of all jobs in a state, by the time they entered it."""
        return f"{self.base}:jobs:{state}"

    @property
    def cancel(self) -> str:
        """Return the hash of open cancellation requests: entry id and group, and the job id."""
        return f"{self.base}:cancel"

    def cancelled(self, message_id: str) -> str:
        """Return the hash that records the cancellation of one job."""
        return f"{self.base}:cancelled:{message_id}"

    def progress(self, message_id: str) -> str:
        """Return the hash that holds the last reported progress of one job."""
        return f"{self.base}:progress:{message_id}"

    def result(self, message_id: str) -> str:
        """Return the stream with one entry that holds the result of one job."""
        return f"{self.base}:result:{message_id}"


def keys_of(stream: str) -> Keys:
    """Return the keys that belong to ``stream``.

    Raises:
        ConfigurationError: The name is empty, or has braces that are not a hash tag, so that no other
            key can share its slot.
    """
    require_text("stream", stream)
    base = slot_prefix(stream)
    if base is not stream and ("{" in stream or "}" in stream):
        raise ConfigurationError(
            f"stream {stream!r} has braces that are not a hash tag, so nothing can be kept in its cluster slot; "
            "rename it, e.g. to 'orders' or 'shop:{7}:orders'"
        )
    return Keys(
        stream=stream,
        delayed=f"{base}:delayed",
        dead=f"{base}:dead",
        paused=f"{base}:paused",
        parked=f"{base}:parked",
        order=f"{base}:order",
        wake=f"{base}:wake",
        base=base,
    )
