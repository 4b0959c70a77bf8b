"""The queue compared with raw redis-py and a raw socket with hiredis, in one run, interleaved.

    python benchmarks/redis_queue.py [--quick]

Not called queue.py: run as a script, its folder comes first on the path and would hide the standard library's queue.

A private redis-server is started. Only the ratios mean something: they are medians over rounds in which every
contender had its turn.
"""

import argparse
import gc
import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet import QueueConfig, QueueConsumer, RedisStreamsQueue
from conquiet.redis_transport.commands import pack
from conquiet.testing import RedisServer

PAYLOAD = {"order": 12345, "amount": 19.99, "currency": "EUR", "note": "benchmark"}
Contender = Callable[[str, int], float]


def raw_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0))


def fill(url: str, stream: str, n: int) -> None:
    client = raw_client(url)
    client.delete(stream)
    client.xgroup_create(stream, "g", id="0-0", mkstream=True)
    data = json.dumps(PAYLOAD)
    for start in range(0, n, 1000):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(1000, n - start)):
            pipe.xadd(stream, {"data": data})
        pipe.execute()
    client.close()


# ---------------------------------------------------------------- one by one: read, decode, acknowledge
def consume_redis_py(url: str, n: int) -> float:
    fill(url, "s", n)
    client: Any = raw_client(url)
    started = time.perf_counter()
    for _ in range(n):
        reply = client.xreadgroup("g", "c", {"s": ">"}, count=1, block=1000)
        entries = reply["s"] if isinstance(reply, dict) else reply[0][1]
        entry_id, fields = entries[0] if not isinstance(entries[0], list) else entries[0][0]
        json.loads(fields[b"data"])
        client.xack("s", "g", entry_id)
    took = time.perf_counter() - started
    client.close()
    return n / took


def consume_socket(url: str, n: int) -> float:
    fill(url, "s", n)
    with raw_socket(url) as call:
        read = pack("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "BLOCK", 1000, "STREAMS", "s", ">")
        started = time.perf_counter()
        for _ in range(n):
            entry_id, fields = call(read)[0][1][0]
            json.loads(fields[1])
            call(pack("XACK", "s", "g", entry_id))
        return n / (time.perf_counter() - started)


def consume_queue(url: str, n: int) -> float:
    fill(url, "s", n)
    with QueueConsumer(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as consumer:
        started = time.perf_counter()
        for _ in range(n):
            msg = consumer.next()
            assert msg is not None
            consumer.ack(msg)
        return n / (time.perf_counter() - started)


# ---------------------------------------------------------------- writing
def enqueue_redis_py(url: str, n: int) -> float:
    client = raw_client(url)
    client.delete("s")
    started = time.perf_counter()
    for _ in range(n):
        client.xadd("s", {"data": json.dumps(PAYLOAD)})
    return n / (time.perf_counter() - started)


def enqueue_queue(url: str, n: int) -> float:
    raw_client(url).delete("s")
    with RedisStreamsQueue(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as queue:
        started = time.perf_counter()
        for _ in range(n):
            queue.enqueue(PAYLOAD)
        return n / (time.perf_counter() - started)


def pipeline_redis_py(url: str, n: int) -> float:
    client = raw_client(url)
    client.delete("s")
    started = time.perf_counter()
    for start in range(0, n, 1000):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(1000, n - start)):
            pipe.xadd("s", {"data": json.dumps(PAYLOAD)})
        pipe.execute()
    return n / (time.perf_counter() - started)


def enqueue_many_queue(url: str, n: int) -> float:
    raw_client(url).delete("s")
    with RedisStreamsQueue(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as queue:
        started = time.perf_counter()
        for start in range(0, n, 1000):
            queue.enqueue_many([PAYLOAD] * min(1000, n - start))
        return n / (time.perf_counter() - started)


@contextmanager
def raw_socket(url: str) -> Iterator[Callable[[bytes], Any]]:
    parts = redis.ConnectionPool.from_url(url).connection_kwargs
    reader = hiredis.Reader(notEnoughData=Ellipsis)
    with socket.create_connection((parts["host"], parts["port"])) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call(packed: bytes) -> Any:
            sock.sendall(packed)
            while (reply := reader.gets()) is Ellipsis:
                reader.feed(sock.recv(65_536))
            return reply

        yield call


# ---------------------------------------------------------------- running
def compare(title: str, url: str, n: int, rounds: int, contenders: dict[str, Contender]) -> None:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            gc.collect()
            rates[name].append(contenders[name](url, n))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    base = next(iter(medians.values()))
    print(f"\n{title} ({n:,} messages, median of {rounds} rounds)")
    for name, rate in medians.items():
        print(f"  {name:<34} {rate:>10,.0f}/s   {rate / base:5.2f} x")


def stale_at(url: str, pending: int) -> None:
    """Ten stale entries at the end of a long pending list."""
    client: Any = raw_client(url)
    fill(url, "s", pending)
    left = pending - 10
    while left:
        left -= len(_entries(client.xreadgroup("g", "busy", {"s": ">"}, count=min(left, 50_000))))
    last = [entry_id for entry_id, _ in _entries(client.xreadgroup("g", "dead", {"s": ">"}, count=10))]
    client.xclaim("s", "g", "dead", 0, last, idle=120_000, justid=True)
    with RedisStreamsQueue(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as queue:
        times = []
        for _ in range(15):
            started = time.perf_counter()
            claimed = queue.claim_stale(60_000)
            times.append(time.perf_counter() - started)
            assert len(claimed) == 10, len(claimed)
            client.xclaim("s", "g", "dead", 0, last, idle=120_000, justid=True)
    print(f"  {pending:>9,} pending: claim_stale of 10 takes {statistics.median(times) * 1000:6.2f} ms")


def _entries(reply: Any) -> list[Any]:
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return entries[0] if entries and isinstance(entries[0], list) else entries


def idle_cpu(url: str, seconds: float) -> None:
    raw_client(url).delete("s")
    with QueueConsumer(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as consumer:
        before = time.process_time()
        consumer.next(block_ms=int(seconds * 1000))
        used = time.process_time() - before
    print(f"\nIdle consumer: {100 * used / seconds:.3f} % of one core over {seconds:.0f} s")


def memory(url: str, n: int) -> None:
    fill(url, "s", min(n, 50_000))
    peaks = []
    with QueueConsumer(redis.Redis.from_url(url), QueueConfig("s", "g", "c")) as consumer:
        for i in range(n):
            if i % 50_000 == 0 and i:
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
                raw_client(url).xtrim("s", 0)
                consumer.queue.enqueue_many([PAYLOAD] * 10_000)
            elif i % 10_000 == 0 and i:
                consumer.queue.enqueue_many([PAYLOAD] * 10_000)
            msg = consumer.next()
            assert msg is not None
            consumer.ack(msg)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(f"\nPeak memory over {n:,} messages: {peaks[0] / 1024:.1f} MiB early, {peaks[-1] / 1024:.1f} MiB at the end")


def import_times(rounds: int) -> None:
    def once(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    bare, ours = [], []
    for _ in range(rounds):
        bare.append(once("redis"))
        ours.append(once("conquiet.queue"))
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"\nImport: redis {statistics.median(bare) * 1000:.0f} ms, conquiet.queue "
          f"{statistics.median(ours) * 1000:.0f} ms ({ratio:.2f} x)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the work, no million pending")
    parser.add_argument("--million", action="store_true", help="also: memory over a million messages")
    options = parser.parse_args()
    scale = 1 if options.quick else 3
    with RedisServer() as server:
        url = server.url
        compare("Read and acknowledge, one by one", url, 2_000 * scale, 5, {
            "raw redis-py": consume_redis_py,
            "QueueConsumer.next + ack": consume_queue,
            "raw socket + hiredis": consume_socket,
        })  # fmt: skip
        compare("Enqueue, one by one", url, 2_000 * scale, 5, {
            "raw redis-py": enqueue_redis_py,
            "RedisStreamsQueue.enqueue": enqueue_queue,
        })  # fmt: skip
        compare("Enqueue, 1,000 at a time", url, 20_000 * scale, 5, {
            "raw redis-py pipeline": pipeline_redis_py,
            "RedisStreamsQueue.enqueue_many": enqueue_many_queue,
        })  # fmt: skip
        print("\nTen stale entries at the end of the pending list")
        for pending in (1_000, 100_000) if options.quick else (1_000, 100_000, 1_000_000):
            stale_at(url, pending)
        server.flush()
        idle_cpu(url, 3.0 if options.quick else 10.0)
        memory(url, 1_000_000 if options.million else 20_000 * scale)
    import_times(5 if options.quick else 11)


if __name__ == "__main__":
    main()
