"""Send plain commands to one Redis over a separate connection, without retries."""

import threading
import time
from typing import Any, Self

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.redaction import printable
from conquiet.core.throttle import Throttle
from conquiet.errors import ConfigurationError, LifecycleError, NoSuchStreamError, WrongKeyTypeError
from conquiet.redis_transport.client import AnyRedis, SyncClient, clone_to
from conquiet.redis_transport.cluster_connection import ClusterConnection, open_connection
from conquiet.redis_transport.commands import Word, encoded, pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.ids import is_entry_id
from conquiet.redis_transport.redis_url import client_from_url
from conquiet.redis_transport.replies import info_fields, server_ms, text
from conquiet.redis_transport.routing import NodeAddress


class RedisAdmin(ClosedAfterUse):
    """Sends commands and returns raw replies. Failures raise a ``QueueError`` with the name of the command.

    Args:
        redis: The client that the connection is cloned from. The caller closes it.
        timeout_s: Longest wait for a reply.
    """

    def __init__(self, redis: AnyRedis, *, timeout_s: float = 10.0) -> None:
        self._connection = open_connection(redis, socket_timeout_s=timeout_s)
        self._client = self._connection.client

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 10.0) -> Self:
        """Open by URL. Nothing is sent before the first command."""
        with client_from_url(SyncClient.from_url, url, socket_connect_timeout=min(timeout_s, 5.0)) as client:
            return cls(client, timeout_s=timeout_s)

    def connect_to(self, host: str, port: int, *, timeout_s: float = 2.0) -> "RedisAdmin | None":
        """Return another server with the same credentials, such as a replica. Nothing is sent before a command.

        None if this connection has no TCP address to replace: it uses a Unix socket or Sentinel.
        """
        if "host" not in self._client.connection_pool.connection_kwargs:
            return None
        with clone_to(self._client, (host, port), timeout_s=timeout_s) as other:
            return type(self)(other, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, *words: Word, stream: str = "", group: str = "") -> Any:
        """Send one command and return its reply."""
        self._wait(1)
        return self._connection.call(str(words[0]), pack(*words), stream=stream, group=group)

    def pipeline(self, commands: list[tuple[Word, ...]], *, stream: str = "", group: str = "") -> list[Any]:
        """Send several commands in one write and return their replies; raise the first error reply."""
        if not commands:
            return []
        self._wait(len(commands))
        packed = b"".join(pack(*words) for words in commands)
        replies = self._connection.pipeline(str(commands[0][0]), packed, len(commands), stream=stream, group=group)
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise translate(reply, stream=stream, group=group, command=str(words[0])) from reply
        return replies

    def send(self, packed: bytes, replies: int, *, command: str, stream: str) -> list[Any]:
        """Send packed commands, e.g. one transaction. Error replies are returned, not raised."""
        self._wait(replies)
        return self._connection.pipeline(command, packed, replies, stream=stream)

    def _wait(self, commands: int) -> None:
        """Wait before this number of commands is sent. Does nothing here; see ``PacedRedisAdmin``."""

    @property
    def is_cluster(self) -> bool:
        """True if commands go to the nodes of a Redis Cluster."""
        return isinstance(self._connection, ClusterConnection)

    def masters(self) -> list[NodeAddress | None]:
        """Return the masters of a Redis Cluster for ``call_each``; one None for a single server."""
        return [*self._connection.masters()] if isinstance(self._connection, ClusterConnection) else [None]

    def call_each(self, address: NodeAddress | None, *words: Word) -> Any:
        """Send one command to this master of a Redis Cluster; with None, to the only server."""
        if address is None or not isinstance(self._connection, ClusterConnection):
            return self.call(*words)
        self._wait(1)
        return self._connection.call_node(address, str(words[0]), pack(*words))

    def info(self, *sections: str) -> dict[str, str]:
        """Return INFO as a dict of text."""
        return info_fields(self.call("INFO", *sections))

    def now_ms(self) -> int:
        """Return the server's clock, which also forms the entry ids. The clock of this host may differ."""
        return server_ms(self.call("TIME"))

    def require_stream(self, key: str | bytes) -> None:
        """Raise unless ``key`` holds a stream; the error names the type that it holds."""
        if not self.is_stream(key):
            raise NoSuchStreamError(
                f"there is no stream at key {printable(display_name(key))!r}", stream=display_name(key)
            )

    def is_stream(self, key: str | bytes) -> bool:
        """Return whether ``key`` holds a stream; raise if it holds another type."""
        name = display_name(key)
        kind = text(self.call("TYPE", key, stream=name))
        if kind not in {"none", "stream"}:
            raise WrongKeyTypeError(f"the key {printable(name)!r} holds a {kind}, not a stream", stream=name)
        return kind == "stream"


class PacedRedisAdmin(RedisAdmin):
    """Waits before a command that would exceed the rate, for long examinations that are not urgent. For one thread."""

    _throttle = Throttle(None)
    _closing: threading.Event | None = None

    def limit(self, per_s: float, closing: threading.Event | None = None) -> None:
        """Limit the rate to ``per_s`` commands per second; raise ``LifecycleError`` once ``closing`` is set."""
        self._throttle = Throttle(per_s)
        self._closing = closing

    def _wait(self, commands: int) -> None:
        wait_s = self._throttle.reserve(commands)
        if self._closing is None:
            time.sleep(wait_s)
        elif self._closing.wait(wait_s):
            raise LifecycleError("the examination was ended: its dashboard closes")


def require_admin(server: object) -> RedisAdmin:
    """Return ``server`` if it is a ``RedisAdmin``. A Redis client is refused."""
    if not isinstance(server, RedisAdmin):
        kind = f"{type(server).__module__}.{type(server).__name__}"
        raise ConfigurationError(f"server must be a RedisAdmin, got {kind}. Pass RedisAdmin(client)")
    return server


def entry_id_in(given: str) -> str | None:
    """Return a text from outside if it is the id of a stream entry, else None."""
    return given if is_entry_id(given) else None


def display_name(name: str | bytes) -> str:
    """Return a Redis name as readable text. Bytes that are not UTF-8 are escaped: not for use in a command."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def utf8_name(name: bytes) -> str | None:
    """Return a Redis name as text; None if it is not UTF-8, as the names of conquiet's streams and workers are."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def as_bytes(name: str | bytes) -> bytes:
    """Return the bytes of a Redis name."""
    return name if isinstance(name, bytes) else encoded(name)
