"""Where a relay publishes to. Each target says what became of each letter, or raises if it cannot be reached.

What the other side knows a letter by:

    ToStream       the payload's field ``_outbox_id``    Inbox(key=by_outbox_id)
    ToProcessor    the envelope's id                     the processor's own id, through all attempts
    ToRabbit       the property message_id, and ``_outbox_id`` in the body
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.bridge.keys import OUTBOX_ID
from conquiet.bridge.payload import decode
from conquiet.bridge.policy import Letter, Outcome
from conquiet.errors import PayloadError
from conquiet.kernel.validation import require_text

if TYPE_CHECKING:
    from conquiet.queue.redis_streams import RedisStreamsQueue

Verdicts = list[tuple[Outcome, str]]
"""For each letter what became of it, and why if it was refused."""

PUBLISHED = (Outcome.PUBLISHED, "")
HELD = (Outcome.HELD, "")


class Target(Protocol):
    """Publishes letters.

    Promises: letters of one key go out in the order given, and none goes out after one of its key that did
    not. ``PUBLISHED`` is said only of what the target has confirmed. An exception means that nothing is known of
    any of them; all will be published again. ``OSError`` (or one of conquiet's errors) says that the target is away:
    nothing counts against a letter then. After any other exception they are tried one by one, to find the letter it is
    about; if several are tried and none is taken, it is the target after all.

    A call, even with one letter, must be over within two minutes: a transaction of the outbox is open meanwhile.
    """

    def publish(self, letters: Sequence[Letter]) -> Verdicts:
        """Publish, and say what became of each one."""
        ...


class ToStream:
    """To a Redis stream. The batch is one transaction: all of it is there, in order, or none.

    Args:
        queue: Its stream is the target. Not closed here.
    """

    def __init__(self, queue: "RedisStreamsQueue") -> None:
        self._queue = queue

    def publish(self, letters: Sequence[Letter]) -> Verdicts:
        """See ``Target.publish``."""
        payloads = [self._payload(letter) for letter in letters]
        try:
            self._queue.enqueue_many(payloads)
        except PayloadError:
            # One of them is the reason, and nothing was sent. Which one shows when they go one by one.
            return one_by_one(letters, lambda index: self._queue.enqueue(payloads[index]))
        return [PUBLISHED] * len(letters)

    def _payload(self, letter: Letter) -> dict[str, Any]:
        return {**decode(letter.payload), OUTBOX_ID: letter.message_id}


class ToProcessor(ToStream):
    """To the handlers of a ``Processor``: each letter becomes an envelope of one event, known by its outbox id.

    Args:
        queue: The processor's stream. Not closed here.
        event: Which handlers are meant.
    """

    def __init__(self, queue: "RedisStreamsQueue", event: str) -> None:
        super().__init__(queue)
        self._event = require_text("event", event)

    def _payload(self, letter: Letter) -> dict[str, Any]:
        from conquiet.processor.envelope import Envelope, to_payload

        return to_payload(Envelope(event=self._event, id=letter.message_id, data=decode(letter.payload)))


def one_by_one(letters: Sequence[Letter], send: Callable[[int], object]) -> Verdicts:
    """Send letters singly; after a refused one, nothing more of its key goes out."""
    verdicts: Verdicts = []
    blocked: set[bytes] = set()
    for index, letter in enumerate(letters):
        if letter.key is not None and letter.key in blocked:
            verdicts.append(HELD)
            continue
        try:
            send(index)
        except PayloadError as error:
            verdicts.append((Outcome.REFUSED, error.reason or type(error).__name__))
            if letter.key is not None:
                blocked.add(letter.key)
        else:
            verdicts.append(PUBLISHED)
    return verdicts
