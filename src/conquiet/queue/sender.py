"""Commands on one stream and group, with every failure as an error of ours."""

from typing import Any

from redis.exceptions import RedisError

from conquiet.errors import QueueError
from conquiet.queue.faults import translate
from conquiet.queue.wire import NotSentError, Wire


class Sender:
    """Sends packed commands once and translates what goes wrong."""

    def __init__(self, wire: Wire, stream: str, group: str) -> None:
        self._wire = wire
        self._stream = stream
        self._group = group

    def call(self, command: str, packed: bytes, *, wait_s: float = 0.0) -> Any:
        """Send one command and return its reply. ``command`` is its name, for errors.

        Raises:
            QueueError: The server refused it, or did not get it, or its answer was lost.
        """
        try:
            return self._wire.call(packed, wait_s=wait_s)
        except NotSentError as error:
            raise self.failure(error.reason, command, sent=False) from error.reason
        except (RedisError, OSError) as error:
            raise self.failure(error, command) from error

    def pipeline(self, command: str, packed: bytes, replies: int) -> list[Any]:
        """Send several commands in one round trip; refusals by the server are among the replies."""
        try:
            return self._wire.pipeline(packed, replies)
        except NotSentError as error:
            raise self.failure(error.reason, command, sent=False) from error.reason
        except (RedisError, OSError) as error:
            raise self.failure(error, command) from error

    def failure(self, error: RedisError | OSError, command: str, *, sent: bool = True) -> QueueError:
        """Return the error to raise from ``error``."""
        return translate(error, stream=self._stream, group=self._group, command=command, sent=sent)

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()
