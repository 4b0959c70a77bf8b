"""Any client a user may have, cloned: same server, no retries, bytes; and the client left as it was."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.redis_clients import RawRedis

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, QueueError
from conquiet.management.redis_admin import RedisAdmin
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.redis_transport.client import clone_async, clone_sync
from conquiet.redis_transport.errors import translate
from conquiet.redis_transport.ids import parse_id
from conquiet.testing import FaultProxy, RedisClusterServer, RedisServer, wait_until
from conquiet.testing.process import ServerCommand

ModernOnly = {"modern": {"legacy_responses": False}} if int(redis.__version__.split(".")[0]) >= 8 else {}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resp2": {"protocol": 2},
    "resp3": {"protocol": 3},
    "text": {"decode_responses": True},
    "text-resp3": {"decode_responses": True, "protocol": 3},
    "impatient": {"socket_timeout": 0.2},
    "patient": {"socket_timeout": None},
    "stubborn": {"retry": Retry(NoBackoff(), 5), "retry_on_timeout": True, "health_check_interval": 1},
    "single": {"single_connection_client": True},
    **ModernOnly,
}


class Connect(Protocol):
    def __call__(self, url: str | None = None, **options: Any) -> redis.Redis: ...


def use(client: Any, stream: str) -> None:
    """The whole life of two messages through a clone of ``client``."""
    config = QueueConfig(stream, "billing", "alice", block_ms=50)
    with QueueConsumer(client, config) as consumer:
        consumer.queue.enqueue({"n": 1})
        first = consumer.next()
        assert first is not None
        assert (type(first.id), first.payload) == (str, {"n": 1})
        assert consumer.extend(first)
        assert consumer.recover_own()[0].delivery_count == 2
        assert consumer.next() is None
        consumer.ack(first)
        consumer.queue.enqueue_many([{"n": 2}, {"n": 3}])
        consumer.next()
        assert wait_until(lambda: consumer.claim_stale(min_idle_ms=1))[0].payload == {"n": 2}
        assert (consumer.backlog().pending, consumer.backlog().lag) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_client_works_alike(connect: Connect, stream: str, kind: str) -> None:
    use(connect(**KINDS[kind]), stream)


@pytest.mark.parametrize("kind", ["plain", "text-resp3"])
def test_an_asyncio_client_works_too(redis_url: str, stream: str, kind: str) -> None:
    use(redis.asyncio.Redis.from_url(redis_url, **KINDS[kind]), stream)


def test_the_callers_client_is_not_changed_and_not_used(connect: Connect, stream: str) -> None:
    client = connect(decode_responses=True, client_name="the-callers-own")
    before = {name: repr(value) for name, value in client.connection_pool.connection_kwargs.items()}

    use(client, stream)

    assert {name: repr(value) for name, value in client.connection_pool.connection_kwargs.items()} == before
    assert client.get("nothing") is None
    client.set("x", "text")
    assert client.get("x") == "text"


def test_the_database_and_the_client_name_are_kept(redis_url: str, stream: str, raw: RawRedis) -> None:
    client = redis.Redis.from_url(redis_url.replace("/0", "/3"), client_name="billing-worker")
    with RedisStreamsQueue(client, QueueConfig(stream, "billing", "alice")):
        names = {(one["name"], one["db"]) for one in raw.client_list()}
        assert client.exists(stream)
    client.close()

    assert ("billing-worker", "3") in names
    assert not raw.exists(stream)


def test_unix_sockets(private_redis: Callable[..., RedisServer]) -> None:
    server = private_redis()

    use(redis.Redis(unix_socket_path=str(server.unix_socket)), "orders")
    use(redis.Redis.from_url(f"unix://{server.unix_socket}"), "more-orders")
    use(redis.asyncio.Redis(unix_socket_path=str(server.unix_socket)), "async-orders")


def test_passwords_and_users(private_redis: Callable[..., RedisServer]) -> None:
    server = private_redis(password="s3cret:/@")
    admin: Any = redis.Redis.from_url(server.url)
    admin.execute_command("ACL", "SETUSER", "worker", "on", ">w0rk", "~*", "+@all")

    use(admin, "orders")
    use(redis.Redis(port=server.port, username="worker", password="w0rk"), "more-orders")
    provider = redis.UsernamePasswordCredentialProvider("worker", "w0rk")
    use(redis.Redis(port=server.port, credential_provider=provider), "provided")
    use(redis.asyncio.Redis(port=server.port, credential_provider=provider), "async-provided")
    with pytest.raises(QueueError) as caught:
        RedisStreamsQueue(redis.Redis(port=server.port, password="wr0ng"), QueueConfig("orders", "g", "c"))
    assert "wr0ng" not in str(caught.value)
    admin.close()


def test_tls(private_redis: Callable[..., RedisServer]) -> None:
    server = private_redis(tls=True, password="s3cret")

    use(redis.Redis.from_url(server.url), "orders")
    use(redis.asyncio.Redis.from_url(server.url), "async-orders")
    strict: Any = redis.Redis(port=server.port, host="127.0.0.1", ssl=True, password="s3cret")
    with pytest.raises(QueueError, match="was not sent") as caught:
        RedisStreamsQueue(strict, QueueConfig("orders", "g", "c"))
    # Not trusted by the caller's client, so not by the clone either.
    assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError | ssl.SSLError)


class Sentinel(RedisServer):
    """A real Sentinel watching one master."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> ServerCommand:
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind {self.host}\ndir {self.folder}\nunixsocket {self.unix_socket}\n"
            f"sentinel monitor orders {self._master.host} {self._master.port} 1\n"
            "sentinel down-after-milliseconds orders 60000\nsentinel failover-timeout orders 3000\n"
        )
        return ServerCommand((str(self._binary), str(config), "--sentinel"), {})


@pytest.fixture
def lone_sentinel(private_redis: Callable[..., RedisServer]) -> Iterator[Sentinel]:
    """A Sentinel with a master without replicas."""
    with Sentinel(private_redis()) as sentinel:
        yield sentinel


def asking(sentinel: RedisServer) -> int:
    """Return the number of connections to the Sentinel that have the name given by the tests."""
    listed = sentinel.call("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    return listed.count(b" name=asking ")


def sentinel_client(kind: Any, sentinel: RedisServer) -> Any:
    """A client that queries Sentinel for its master, but has its own address of the master."""
    options = {"sentinel_kwargs": {"client_name": "asking"}, "force_master_ip": "localhost"}
    return kind([(sentinel.host, sentinel.port)], **options).master_for("orders")


def test_a_synchronous_clone_closes_what_it_opened_to_ask_sentinels(lone_sentinel: Sentinel) -> None:
    clone: Any = clone_sync(sentinel_client(redis.asyncio.sentinel.Sentinel, lone_sentinel))
    assert clone.ping()
    assert clone.connection_pool.master_address[0] == "localhost"
    assert asking(lone_sentinel) == 1

    clone.close()

    wait_until(lambda: asking(lone_sentinel) == 0, message="the connection's end")


def test_an_asyncio_clone_closes_what_it_opened_to_ask_sentinels(lone_sentinel: Sentinel) -> None:
    async def scenario() -> None:
        clone: Any = clone_async(sentinel_client(redis.sentinel.Sentinel, lone_sentinel))
        assert await clone.ping()
        assert clone.connection_pool.master_address[0] == "localhost"
        assert asking(lone_sentinel) == 1

        await clone.aclose()

        wait_until(lambda: asking(lone_sentinel) == 0, message="the connection's end")

    asyncio.run(scenario())


def test_a_clone_of_the_same_kind_leaves_the_callers_sentinel_open(lone_sentinel: Sentinel) -> None:
    client = sentinel_client(redis.sentinel.Sentinel, lone_sentinel)
    use(client, "orders")

    assert asking(lone_sentinel) == 1

    for sentinel in client.connection_pool.sentinel_manager.sentinels:
        sentinel.close()


def test_a_master_that_was_demoted_refuses_and_leaves_no_doubt(lone_sentinel: Sentinel) -> None:
    """redis-py makes a connection error of that reply, sync and asyncio: nothing was added, and the error states it."""
    client = sentinel_client(redis.sentinel.Sentinel, lone_sentinel)
    with RedisStreamsQueue(client, QueueConfig("orders", "g", "alice")) as queue:
        queue.enqueue({"n": 1})
        client.replicaof(lone_sentinel.host, lone_sentinel.port)

        with pytest.raises(QueueError, match="refused") as caught:
            queue.enqueue({"n": 2})
        assert not caught.value.in_doubt

        async def from_asyncio() -> QueueError:
            clone: Any = clone_async(client)
            try:
                await clone.xadd("orders", {"data": "{}"})
            except redis.exceptions.ConnectionError as error:
                return translate(error, stream="orders", group="g", command="XADD")
            finally:
                await clone.aclose()
            raise AssertionError("the demoted master took an entry")

        assert not asyncio.run(from_asyncio()).in_doubt
        assert queue.backlog().length == 1
    client.close()
    for sentinel in client.connection_pool.sentinel_manager.sentinels:
        sentinel.close()


@dataclass(frozen=True)
class Watched:
    """A master with a replica, and who watches them."""

    master: RedisServer
    replica: RedisServer
    sentinel: Sentinel

    def is_replicated(self) -> bool:
        # Not WAIT: it covers only the writes of the same connection.
        sent, got = offset(self.master, b"master_repl_offset"), offset(self.replica, b"slave_repl_offset")
        return sent == got


def offset(server: RedisServer, name: bytes) -> bytes:
    info = server.call("INFO", "replication")
    assert isinstance(info, bytes)
    return dict(line.partition(b":")[::2] for line in info.splitlines()).get(name, b"none")


@pytest.fixture
def watched(private_redis: Callable[..., RedisServer]) -> Iterator[Watched]:
    master = private_redis()
    replica = private_redis(
        extra_args=("--replicaof", master.host, str(master.port), "--repl-diskless-sync-delay", "0")
    )
    wait_until(lambda: offset(replica, b"master_link_status") == b"up", message="the replica's link")
    with Sentinel(master) as sentinel:
        wait_until(lambda: sentinel.call("SENTINEL", "REPLICAS", "orders"), message="Sentinel to know the replica")
        yield Watched(master, replica, sentinel)


def test_sentinel_finds_the_master_also_after_it_has_moved(watched: Watched) -> None:
    address = (watched.sentinel.host, watched.sentinel.port)
    kinds: list[Any] = [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel]
    manager, async_manager = [kind([address], socket_timeout=5) for kind in kinds]
    client = manager.master_for("orders")
    use(client, "orders")
    use(async_manager.master_for("orders"), "async-orders")
    with pytest.raises(ConfigurationError, match="master_for"):
        RedisStreamsQueue(manager.slave_for("orders"), QueueConfig("orders", "g", "c"))

    with RedisStreamsQueue(client, QueueConfig("paid", "billing", "alice")) as queue:
        queue.enqueue({"n": 1})
        wait_until(watched.is_replicated, message="replication")
        watched.sentinel.call("SENTINEL", "SET", "orders", "down-after-milliseconds", "400")
        watched.master.kill()
        with pytest.raises(QueueError):
            queue.enqueue({"n": 2})

        def works_again() -> bool:
            try:
                return bool(queue.enqueue({"n": 3}))
            except QueueError:
                return False

        wait_until(works_again, interval_s=0.1, message="the new master")
        assert queue.read(100)[0].payload == {"n": 1}
    client.close()


# ---------------------------------------------------------------- what cannot be cloned
@pytest.mark.parametrize("what", [None, "redis://localhost", object(), redis.ConnectionPool()])
def test_an_object_that_is_not_a_client_is_refused_with_advice(what: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Pass redis\.Redis"):
        RedisStreamsQueue(what, QueueConfig("orders", "g", "c"))


def test_clients_of_a_cluster_are_cloned_to_either_kind(redis_cluster: RedisClusterServer) -> None:
    client: Any = redis.RedisCluster.from_url(redis_cluster.node_url)
    use(client, "orders")
    client.close()

    async def scenario() -> None:
        client: Any = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)  # nothing was sent yet
        use(client, "async-orders")
        await client.aclose()

    asyncio.run(scenario())
    with RedisAdmin.from_url(redis_cluster.url) as server:
        assert [server.call("XLEN", name, stream=name) for name in ("orders", "async-orders")] == [3, 3]


def test_a_plain_client_of_a_cluster_node_gets_advice(redis_cluster: RedisClusterServer) -> None:
    wrong = next(node for node in redis_cluster.masters() if node is not redis_cluster.master_of("orders"))
    client = redis.Redis.from_url(wrong.url)

    with pytest.raises(QueueError, match=r"\(MOVED\)\. The server is a node of a Redis Cluster: .*cluster=true"):
        RedisStreamsQueue(client, QueueConfig("orders", "g", "c"))
    client.close()


class Tunnelled(redis.Connection):
    """A connection class of the user's own."""


def test_connections_of_the_users_own_class_are_kept_but_not_translated(redis_url: str, stream: str) -> None:
    client = redis.Redis(connection_pool=redis.ConnectionPool.from_url(redis_url, connection_class=Tunnelled))

    use(client, stream)
    with pytest.raises(ConfigurationError, match="Tunnelled"):
        clone_async(client)
    client.connection_pool.disconnect()


def test_a_protection_that_cannot_be_translated_is_refused() -> None:
    settings: dict[str, Any] = {"redis_connect_func": lambda _: None}
    client = redis.Redis(ssl=True, **settings)

    with pytest.raises(ConfigurationError, match="redis_connect_func"):
        clone_async(client)


# ---------------------------------------------------------------- the clones themselves
def test_a_synchronous_clone_sends_each_command_once(
    redis_url: str, fault_proxy: Callable[[str], FaultProxy], raw: RawRedis, stream: str
) -> None:
    proxy = fault_proxy(redis_url)
    callers = redis.Redis.from_url(proxy.url_for(redis_url))
    clone = clone_sync(callers)
    proxy.drop_next_reply(b"XADD")

    with pytest.raises(redis.exceptions.ConnectionError):
        clone.xadd(stream, {"data": "{}"})

    assert raw.xlen(stream) == 1
    clone.close()
    callers.close()


@pytest.mark.parametrize("source", [redis.Redis, redis.asyncio.Redis])
def test_an_asyncio_clone_sends_each_command_once_and_answers_bytes(
    redis_url: str, fault_proxy: Callable[[str], FaultProxy], raw: RawRedis, stream: str, source: type[Any]
) -> None:
    proxy = fault_proxy(redis_url)

    async def scenario() -> Any:
        callers = source.from_url(proxy.url_for(redis_url), decode_responses=True, protocol=3)
        clone: Any = clone_async(callers)
        proxy.drop_next_reply(b"XADD")
        with pytest.raises(redis.exceptions.ConnectionError):
            await clone.xadd(stream, {"data": "{}"})
        answer = await clone.xrange(stream)
        await clone.aclose()
        return answer

    ((_, fields),) = asyncio.run(scenario())

    assert fields == {b"data": b"{}"}
    assert raw.xlen(stream) == 1


def test_several_threads_may_enqueue_through_one_queue(connect: Connect, stream: str, raw: RawRedis) -> None:
    with RedisStreamsQueue(connect(), QueueConfig(stream, "billing", "alice")) as queue:
        ids: list[list[str]] = [[] for _ in range(6)]

        def work(mine: list[str]) -> None:
            mine.extend(queue.enqueue({"n": n}) for n in range(50))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    stored = [entry_id.decode() for entry_id, _ in raw.xrange(stream)]
    assert sorted(stored) == sorted(message_id for mine in ids for message_id in mine)
    assert len(set(stored)) == 300
    assert all(mine == sorted(mine, key=parse_id) for mine in ids)


def test_a_forked_child_gets_connections_of_its_own(connect: Connect, stream: str, raw: RawRedis) -> None:
    import multiprocessing

    with RedisStreamsQueue(connect(), QueueConfig(stream, "billing", "alice")) as queue:
        queue.enqueue({"n": 0})
        child = multiprocessing.get_context("fork").Process(target=_enqueue_in_child, args=(queue,))
        child.start()
        for n in range(50):
            queue.enqueue({"parent": n})
        child.join(60)

        assert child.exitcode == 0
        assert raw.xlen(stream) == 101


def _enqueue_in_child(queue: RedisStreamsQueue) -> None:
    for n in range(50):
        queue.enqueue({"child": n})


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_an_abort_in_a_forked_child_leaves_the_parents_connections_open(
    connect: Connect, stream: str, raw: RawRedis
) -> None:
    """The child has the parent's sockets and signal handlers: a second SIGTERM to both would abort in both."""
    import multiprocessing

    config = QueueConfig(stream, "billing", "alice")
    with RedisStreamsQueue(connect(), config) as queue, ThreadPoolExecutor(1) as threads:
        reading = threads.submit(queue.read, 30_000)
        wait_until(lambda: any(one["cmd"] == "xreadgroup" for one in raw.client_list()))
        child = multiprocessing.get_context("fork").Process(target=queue.abort)
        child.start()
        child.join(60)
        message_id = raw.xadd(stream, {"data": "{}"})

        assert child.exitcode == 0
        assert [msg.id for msg in reading.result(60)] == [message_id.decode()]
