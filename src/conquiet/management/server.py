"""One Redis, as an operator sees it: plain commands on a connection of our own, each sent once."""

from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from conquiet.errors import NoSuchStreamError, WrongKeyTypeError
from conquiet.kernel.redaction import printable
from conquiet.management.addresses import client_for
from conquiet.queue.client import AnyRedis, clone_sync
from conquiet.queue.commands import Word, encoded, pack
from conquiet.queue.faults import translate
from conquiet.queue.replies import as_mapping, text
from conquiet.queue.wire import NotSentError, Wire


class Server:
    """Sends commands and returns raw replies. What goes wrong is a ``QueueError`` that names the command.

    Args:
        redis: The client to clone the connection from; it stays the caller's.
        timeout_s: How long a reply may take.
    """

    def __init__(self, redis: AnyRedis, *, timeout_s: float = 10.0) -> None:
        self._wire = Wire(clone_sync(redis, socket_timeout_s=timeout_s), longest_wait_s=0.0)

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 10.0) -> Self:
        """Open by URL. Nothing is sent before the first command."""
        with client_for(Redis.from_url, url, socket_connect_timeout=min(timeout_s, 5.0)) as client:
            return cls(client, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, *words: Word, stream: str = "", group: str = "") -> Any:
        """Send one command and return its reply."""
        try:
            return self._wire.call(pack(*words))
        except NotSentError as error:
            cause = error.__cause__
            assert isinstance(cause, RedisError | OSError)  # noqa: S101 - that is what NotSentError wraps
            raise translate(cause, stream=stream, group=group, command=str(words[0]), sent=False) from cause
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=str(words[0])) from error

    def pipeline(self, commands: list[tuple[Word, ...]], *, stream: str = "", group: str = "") -> list[Any]:
        """Send several commands at once and return their replies; a refusal is raised."""
        if len(commands) < 2:  # noqa: PLR2004 - one reply is not a list of replies
            return [self.call(*words, stream=stream, group=group) for words in commands]
        try:
            replies = self._wire.pipeline(b"".join(pack(*words) for words in commands), len(commands))
        except NotSentError as error:
            cause = error.__cause__
            assert isinstance(cause, RedisError | OSError)  # noqa: S101 - as above
            raise translate(cause, stream=stream, group=group, command=str(commands[0][0]), sent=False) from cause
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=str(commands[0][0])) from error
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise translate(reply, stream=stream, group=group, command=str(words[0])) from reply
        return replies

    def send(self, packed: bytes, replies: int, *, command: str, stream: str) -> list[Any]:
        """Send commands that are packed already, e.g. one transaction; refusals are among the replies."""
        try:
            return self._wire.pipeline(packed, replies)
        except NotSentError as error:
            cause = error.__cause__
            assert isinstance(cause, RedisError | OSError)  # noqa: S101 - as above
            raise translate(cause, stream=stream, group="", command=command, sent=False) from cause
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group="", command=command) from error

    def info(self, *sections: str) -> dict[str, str]:
        """Return INFO as a dict of text."""
        raw = text(self.call("INFO", *sections))
        return dict(line.split(":", 1) for line in raw.splitlines() if ":" in line and not line.startswith("#"))

    def now_ms(self) -> int:
        """Return the server's clock. Ours may be off, and entry ids are made from the server's."""
        seconds, microseconds = self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def mapping(self, *words: Word, stream: str = "", group: str = "") -> dict[str, Any]:
        """Return a reply of names and values as a dict with text keys."""
        return {text(key): value for key, value in as_mapping(self.call(*words, stream=stream, group=group)).items()}

    def require_stream(self, key: str | bytes) -> None:
        """Raise unless there is a stream at ``key``; the error says what is there instead."""
        if not self.is_stream(key):
            raise NoSuchStreamError(f"there is no stream at key {printable(shown(key))!r}", stream=shown(key))

    def is_stream(self, key: str | bytes) -> bool:
        """Say whether there is a stream at ``key``; raise if there is something else."""
        name = shown(key)
        kind = text(self.call("TYPE", key, stream=name))
        if kind not in {"none", "stream"}:
            raise WrongKeyTypeError(f"the key {printable(name)!r} holds a {kind}, not a stream", stream=name)
        return kind == "stream"


def shown(name: str | bytes) -> str:
    """Return a name of Redis as text for people. What is not UTF-8 is escaped: no command finds it by this."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def as_bytes(name: str | bytes) -> bytes:
    """Return a name as Redis has it."""
    return name if isinstance(name, bytes) else encoded(name)
