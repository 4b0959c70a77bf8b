"""On a Redis Cluster: a reader per slot, one pool for all, and streams that move while they are read."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot
from tests.integration.runtime.conftest import BeatQuickly, MakeEngine, Run, SeenToFall

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueError
from conquiet.redis_transport import slot_table
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import RedisServer, free_port, wait_until, wait_until_async
from conquiet.testing.shared import SharedServers

pytestmark = pytest.mark.xdist_group("redis-cluster")

QUICK = Backoff(base_s=0.02, cap_s=0.2)
STREAMS = [f"orders-{number}" for number in range(6)]


class ClusterNode(RedisServer):
    """Chooses its port for the others together with its own: when one was taken meanwhile, it starts on new ones."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "15000")
        extra = ("--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0")
        self._extra_args = (*options, *extra, "--repl-diskless-sync-delay", "0")


class Nodes:
    """Three masters with a third of the slots each, and replicas on request. All of it on the loopback."""

    def __init__(self, start: Callable[[], RedisServer]) -> None:
        self._start = start
        self.masters = [start() for _ in range(3)]
        for number, node in enumerate(self.masters):
            node.call("CLUSTER", "ADDSLOTSRANGE", str(number * 5_462), str(min(number * 5_462 + 5_461, 16_383)))
            # Without it all start in the same epoch, and it takes them seconds to agree on another.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in self.masters[1:]:
            self._meet(node)
        wait_until(lambda: all(map(_agrees, self.masters)))

    def _meet(self, node: RedisServer) -> None:
        bus = node.call("CONFIG", "GET", "cluster-port")
        assert isinstance(bus, list)
        assert isinstance(bus[1], bytes)
        self.masters[0].call("CLUSTER", "MEET", node.host, str(node.port), bus[1])

    def url(self, number: int = 0) -> str:
        return self.masters[number].url

    def has(self, stream: str) -> int:
        return min(key_slot(stream.encode()) // 5_462, 2)

    def replica_of(self, number: int) -> RedisServer:
        node = self._start()
        self._meet(node)
        master = self.masters[number].call("CLUSTER", "MYID")
        assert isinstance(master, bytes)
        wait_until(lambda: master in str(node.call("CLUSTER", "NODES")).encode())
        node.call("CLUSTER", "REPLICATE", master)
        wait_until(lambda: b"master_link_status:up" in _text(node.call("INFO", "replication")))
        # Without its master, gossip would no longer make the others known to each other: they could not elect it.
        own = _text(node.call("CLUSTER", "MYID"))
        others = [_text(one.call("CLUSTER", "MYID")) for one in self.masters]
        wait_until(lambda: all(_lists(one, own, b"slave " + master) for one in self.masters))
        wait_until(lambda: all(_lists(node, other, b"master - ") for other in others))
        return node

    def move(self, stream: str, to: int, *, since: int | None = None) -> None:
        """Move the slot of a stream, and the stream, the way an operator's tool does."""
        source, target = self.masters[self.has(stream) if since is None else since], self.masters[to]
        slot = str(key_slot(stream.encode()))
        source_id, target_id = _text(source.call("CLUSTER", "MYID")), _text(target.call("CLUSTER", "MYID"))
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, "100"):  # the stream, and the key of its consumer
            assert isinstance(keys, list)
            for key in keys:
                source.call("MIGRATE", target.host, str(target.port), _text(key).decode(), "0", "5000")
        for node in (target, source, *self.masters):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def _agrees(node: RedisServer) -> bool:
    slots = node.call("CLUSTER", "SLOTS")
    return isinstance(slots, list) and len(slots) == 3 and b"cluster_state:ok" in _text(node.call("CLUSTER", "INFO"))


def _lists(node: RedisServer, other: bytes, role: bytes) -> bool:
    """Return whether a node knows another one in this role, with a connection."""
    lines = _text(node.call("CLUSTER", "NODES")).splitlines()
    # "myself,master - 0 …" has no connection to itself, and is called connected.
    return any(line.startswith(other) and role in line and b" connected" in line for line in lines)


def _offset(node: RedisServer) -> bytes:
    """Return the offset of a node in the replication stream."""
    lines = _text(node.call("INFO", "replication")).splitlines()
    (line,) = [line for line in lines if line.startswith((b"slave_repl_offset:", b"master_repl_offset:"))][:1]
    return line.partition(b":")[2]


def _text(reply: object) -> bytes:
    assert isinstance(reply, bytes)
    return reply


@contextmanager
def started(conquiet_servers: Any) -> Iterator[Nodes]:
    with ExitStack() as stack:

        def start() -> RedisServer:
            server = stack.enter_context(ClusterNode())
            conquiet_servers.record(server)
            return server

        yield Nodes(start)


@pytest.fixture
def nodes(conquiet_servers: SharedServers) -> Iterator[Nodes]:
    """For tests that leave them in another state."""
    with started(conquiet_servers) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def lasting_nodes(conquiet_servers: SharedServers) -> Iterator[Nodes]:
    """The servers of a cluster need two seconds before it serves a client."""
    with started(conquiet_servers) as nodes:
        yield nodes


@pytest.fixture
def shared_nodes(lasting_nodes: Nodes) -> Nodes:
    for node in lasting_nodes.masters:
        node.flush()
    return lasting_nodes


def fill(client: Any, stream: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        client.xadd(stream, {"data": json.dumps({"n": number})})


def pending(client: Any, streams: list[str] = STREAMS) -> dict[str, int]:
    return {stream: client.xpending(stream, "processor")["pending"] for stream in streams}


@pytest.mark.spec("CM-001.4", "CM-001.6")
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_streams_of_many_slots_are_read_by_one_engine_within_one_bound(
    shared_nodes: Nodes, make_engine: MakeEngine, run: Run, kind: str
) -> None:
    raw = redis.RedisCluster.from_url(shared_nodes.url(), protocol=2)
    given: Any = raw if kind == "sync" else redis.asyncio.RedisCluster.from_url(shared_nodes.url(1))
    fill(raw, STREAMS[0], 300)
    for stream in STREAMS[1:]:
        fill(raw, stream, 20)
    seen: Counter[tuple[str, int]] = Counter()
    in_hand: list[int] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen[message.stream, message.data["n"]] += 1
        in_hand.append(engine.health().in_flight - engine.health().unacknowledged)
        await asyncio.sleep(0.001)

    engine: Consumer = make_engine(handler, redis=given, streams=STREAMS, concurrency=4, prefetch=6)
    running = run(engine)
    await wait_until_async(lambda: len(seen) == 400)
    await engine.wait_for_active_tasks()
    assert pending(raw) == dict.fromkeys(STREAMS, 0)
    # A message that arrives while all wait is taken immediately, on any stream.
    for stream in STREAMS:
        fill(raw, stream, 1, start=1_000)
    await wait_until_async(lambda: len(seen) == 406)
    report = await running.stop()
    raw.close()
    if kind == "async":
        await given.aclose()

    assert len({key_slot(stream.encode()) for stream in STREAMS}) == len(STREAMS)
    assert {shared_nodes.has(stream) for stream in STREAMS} == {0, 1, 2}
    assert set(seen.values()) == {1}
    assert max(in_hand) <= 10
    assert running.errors == []
    assert (report.succeeded, report.unreleased, report.unacknowledged) == (406, 0, ())


async def test_readers_take_turns_when_one_message_only_may_be_fetched(
    shared_nodes: Nodes, make_engine: MakeEngine, run: Run
) -> None:
    raw = redis.RedisCluster.from_url(shared_nodes.url(), protocol=2)
    seen: list[str] = []
    in_hand: list[int] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.stream)
        in_hand.append(engine.health().in_flight - engine.health().unacknowledged)
        await asyncio.sleep(0)

    engine: Consumer = make_engine(handler, redis=raw, streams=STREAMS, concurrency=1, prefetch=0)
    running = run(engine)
    await wait_until_async(lambda: engine.health().ready)
    fill(raw, STREAMS[0], 100)
    for stream in STREAMS[1:]:
        fill(raw, stream, 3)
    await wait_until_async(lambda: len(seen) == 115)
    await running.stop()
    raw.close()

    assert max(in_hand) == 1
    # The others do not wait until the flooded one is empty.
    assert max(seen.index(stream) for stream in STREAMS[1:]) < 50


async def test_a_stream_keeps_its_leases_when_it_moves_to_another_node(
    nodes: Nodes, make_engine: MakeEngine, run: Run, beat_quickly: BeatQuickly, seen_to_fall: SeenToFall
) -> None:
    raw = redis.RedisCluster.from_url(nodes.url(), protocol=2)
    moving = STREAMS[0]
    home = nodes.has(moving)
    first, second = (home + 1) % 3, (home + 2) % 3
    seen: Counter[tuple[str, int]] = Counter()
    counts: set[int] = set()

    def idle_ms() -> int:
        rows: Any = nodes.masters[home].call("XPENDING", moving, "processor", "-", "+", "1")
        return int(rows[0][2])

    def move_and_watch() -> None:
        engine._topology._table.refresh()  # it has no doubt left
        nodes.move(moving, home, since=second)
        # Only a heartbeat that searches for the new node itself finds it there.
        wait_until(seen_to_fall(idle_ms), message="extended three times")

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if message.data["n"] == 101:
            move_and_watch()  # blocks the event loop
            ctx.check_lease()
        seen[message.stream, message.data["n"]] += 1
        counts.add(message.delivery_count)
        await asyncio.sleep(0.002)

    options = {"redis": raw, "streams": STREAMS, "concurrency": 4, "claim_idle_ms": 600_000, "reconnect": QUICK}
    engine: Any = beat_quickly(make_engine(handler, **options))
    # It moves between the question who has it and the first command: the start must not fail for that.
    engine._topology._table.refresh()
    fill(raw, moving, 1)
    nodes.move(moving, first)

    def believe_the_old_answer_once() -> None:
        del engine._topology._table.ask

    engine._topology._table.ask = believe_the_old_answer_once
    running = run(engine)
    await wait_until_async(lambda: (moving, 0) in seen)
    started_with = list(running.errors)
    for stream in STREAMS:
        await asyncio.to_thread(fill, raw, stream, 50, 1)
    await asyncio.to_thread(nodes.move, moving, second, since=first)
    for stream in STREAMS:
        await asyncio.to_thread(fill, raw, stream, 50, 51)
    await wait_until_async(lambda: len(seen) == 601)
    await running.engine.wait_for_active_tasks()
    fill(raw, moving, 1, start=101)
    await wait_until_async(lambda: len(seen) == 602)
    await asyncio.to_thread(fill, raw, moving, 50, 102)
    await wait_until_async(lambda: len(seen) == 652)
    await running.engine.wait_for_active_tasks()
    left = pending(raw)
    report = await running.stop()
    raw.close()

    assert started_with
    assert nodes.masters[home].call("XLEN", moving) == 152
    assert set(seen.values()) == {1}
    assert counts == {1}
    assert left == dict.fromkeys(STREAMS, 0)
    assert report.failed == 0


async def test_a_replica_that_takes_over_is_found(nodes: Nodes, make_engine: MakeEngine, run: Run) -> None:
    raw = redis.RedisCluster.from_url(nodes.url(), protocol=2)
    victim = nodes.has(STREAMS[0])
    replica = await asyncio.to_thread(nodes.replica_of, victim)
    seen: Counter[tuple[str, int]] = Counter()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen[message.stream, message.data["n"]] += 1

    options = {"redis": raw, "streams": STREAMS, "concurrency": 4, "reconnect": QUICK, "max_reconnects": 200}
    running = run(make_engine(handler, **options))
    for stream in STREAMS:
        fill(raw, stream, 20)
    await wait_until_async(lambda: len(seen) == 120)
    await running.engine.wait_for_active_tasks()
    # Not WAIT: it covers only the writes of its own connection. And a replica that has just synchronised gets nothing
    # before its first report, up to a second later.
    await wait_until_async(lambda: _offset(replica) == _offset(nodes.masters[victim]))
    for node in (*nodes.masters, replica):
        node.call("CONFIG", "SET", "cluster-node-timeout", "1000")
    await asyncio.to_thread(nodes.masters[victim].kill)
    await wait_until_async(lambda: not running.engine.health().ready)
    others = [stream for stream in STREAMS if nodes.has(stream) != victim]
    survivor = redis.RedisCluster.from_url(nodes.url((victim + 1) % 3), protocol=2, require_full_coverage=False)
    for stream in others:
        await asyncio.to_thread(fill, survivor, stream, 20, 20)
    await wait_until_async(lambda: len(seen) == 120 + 20 * len(others))
    await wait_until_async(lambda: b"role:master" in _text(replica.call("INFO", "replication")))
    await wait_until_async(lambda: running.engine.health().ready)
    for stream in STREAMS:
        if stream not in others:
            replica.call("XADD", stream, "*", "data", '{"n": 999}')
    await wait_until_async(lambda: all(seen[stream, 999] for stream in STREAMS if stream not in others))
    report = await running.stop()
    raw.close()
    survivor.close()

    assert running.errors
    assert report.failed == 0


async def test_a_cluster_that_is_not_there_is_an_error_of_the_queue(nodes: Nodes, make_engine: MakeEngine) -> None:
    client = redis.RedisCluster.from_url(nodes.url())
    for node in nodes.masters:
        await asyncio.to_thread(node.kill)

    with pytest.raises(Exception, match="was not sent: no connection to the server"):
        await make_engine(print, redis=client, streams=STREAMS).start()
    client.close()


async def test_a_silent_node_costs_the_others_neither_leases_nor_their_end(
    shared_nodes: Nodes, make_engine: MakeEngine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_table, "_FETCH_TIMEOUT_S", 0.3)
    raw = redis.RedisCluster.from_url(shared_nodes.url(), protocol=2)
    silent = shared_nodes.masters[shared_nodes.has(STREAMS[0])]
    on_silent = [stream for stream in STREAMS if shared_nodes.masters[shared_nodes.has(stream)] is silent]
    for stream in STREAMS:
        fill(raw, stream, 1)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await asyncio.Event().wait()

    engine: Any = make_engine(handler, redis=raw, streams=STREAMS, concurrency=20, claim_idle_ms=600_000)
    engine._topology._timeout_s = 0.3
    running = run(engine)
    await wait_until_async(lambda: engine.active_tasks == 6)
    asked: list[int] = []
    extend = engine._heartbeat._extend

    def noted(client: Any, *arguments: Any) -> None:
        asked.append(client.connection_pool.connection_kwargs["port"])
        extend(client, *arguments)

    engine._heartbeat._extend = noted
    await asyncio.to_thread(silent.pause)
    try:
        for _ in range(2):
            with pytest.raises(QueueError) as caught:
                await asyncio.to_thread(engine._heartbeat.beat, time.monotonic() + 300)
            assert isinstance(caught.value.__cause__, redis.exceptions.TimeoutError)
        # As it will be in a while: nothing read there, and handlers of the others that come to their end.
        engine._shards[0].fetcher.last_progress -= 10
        engine._pace.last_end = time.monotonic()
        health = engine.health()
        engine.stop()
        engine.stop()
        report = await asyncio.wait_for(running.task, 60)
    finally:
        await asyncio.to_thread(silent.resume)
    raw.close()

    assert sorted(set(asked)) == sorted(node.port for node in shared_nodes.masters)
    assert asked.index(silent.port, 3) == 5  # at the second time the last of three
    assert not health.ready
    assert report.unanswered_reads == len(on_silent)
    assert len(report.abandoned) == 6
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("conquiet-lease")] == []


async def test_nodes_that_have_gone_are_not_asked_again(
    shared_nodes: Nodes, make_engine: MakeEngine, closed_port: int
) -> None:
    """If nodes return under other addresses, each unsuccessful query would cost a timeout."""
    raw = redis.RedisCluster.from_url(shared_nodes.url(), protocol=2)
    servers: Any = make_engine(print, redis=raw, streams=STREAMS)._topology
    gone = ("127.0.0.1", closed_port)
    table = servers._table
    table._addresses.insert(0, gone)

    servers.refresh()
    servers.client(STREAMS[0])
    table._owners = dict.fromkeys(table._owners, gone)
    for stream in STREAMS:
        servers.client(stream)
    table._fetched_at -= 1
    servers.refresh()
    clients = set(servers._clients)
    await servers.close()
    raw.close()

    assert gone not in clients
    assert sorted(table._addresses) == sorted(("127.0.0.1", node.port) for node in shared_nodes.masters)
