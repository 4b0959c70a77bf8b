"""Names of everything the processor keeps beside a stream, all in the stream's own cluster slot. Pure.

Redis Cluster hashes only what stands between the first ``{`` and the next ``}`` of a key, if there
is anything. So ``{orders}:delayed`` lives where ``orders`` lives, and a stream that brings its own
tag (``shop:{7}:orders``) only gets a suffix. One script may then touch all of them at once.
"""

from dataclasses import dataclass

from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError
from conquiet.redis_transport.hash_tags import slot_prefix


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one stream.

    Attributes:
        stream: The stream itself.
        delayed: Sorted set of messages that wait, by due time in milliseconds.
        dead: Stream of dead letters.
        paused: Hash of what is paused: ``*`` for the whole stream, else an event; the value is since when.
        parked: Set of the events that have messages parked because of a pause.
        order: Hash of the ticket of each key's holder; further names start with it. See ``lua/ordering.lua``.
        wake: Stream of one entry that is replaced whenever hosts should look: an earlier due time, a pause.
        base: What the names of the further keys start with.
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
        """Return the key that exists as long as this id counts as emitted already."""
        return f"{self.base}:emitted:{message_id}"

    def debounce(self, event: str, name: str) -> str:
        """Return the key that holds the waiting message of a debounced event.

        The length says where the event ends: both parts may have colons.
        """
        return f"{self.base}:debounce:{len(event)}:{event}:{name}"

    def parked_event(self, event: str) -> str:
        """Return the list of messages parked while this event is paused."""
        return f"{self.base}:parked:{event}"

    @property
    def waiting_keys(self) -> str:
        """Return the sorted set of the keys that have messages waiting, by their number."""
        return f"{self.order}:waiting"

    def waiting(self, key: str) -> str:
        """Return the list of the messages that wait for a key; ``key`` as it stands in the JSON text."""
        return f"{self.order}:key:{key}"

    def rate(self, event: str) -> str:
        """Return the key that holds the next free turn of a rate-limited event."""
        return f"{self.base}:rate:{event}"

    def job(self, message_id: str) -> str:
        """Return the hash that holds the state of one job."""
        return f"{self.base}:job:{message_id}"

    def jobs(self, state: str) -> str:
        """Return the sorted set of the ids of all jobs in a state, by the time they came into it."""
        return f"{self.base}:jobs:{state}"

    @property
    def cancel(self) -> str:
        """Return the hash of cancellations that a worker has to decide: entry id and group, and the job's id."""
        return f"{self.base}:cancel"

    def cancelled(self, message_id: str) -> str:
        """Return the hash that records the cancellation of one job."""
        return f"{self.base}:cancelled:{message_id}"

    def progress(self, message_id: str) -> str:
        """Return the hash that holds what the handler of one job has reported last."""
        return f"{self.base}:progress:{message_id}"

    def result(self, message_id: str) -> str:
        """Return the stream of one entry that holds how one job has ended."""
        return f"{self.base}:result:{message_id}"


def keys_of(stream: str) -> Keys:
    """Return the keys that belong to ``stream``.

    Raises:
        ConfigurationError: The name is empty, or has braces that make no hash tag, so that no other
            key can be made to share its slot.
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
