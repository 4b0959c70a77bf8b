"""A killed worker of any host is detected by its closed connections; a reconnected worker does not count as dead."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
import redis.asyncio
from playwright.async_api import Page, expect
from tests.integration.dashboard.conftest import Serve
from tests.redis_clients import RawRedis

from conquiet.dashboard.connections import ConnectionWatch
from conquiet.dashboard.servers import Servers
from conquiet.dashboard.settings import DashboardSettings
from conquiet.management.models import ConsumerState
from conquiet.management.workers import StreamWorker, WorkerFacts, read_workers
from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.worker_reports import workers_key
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async

GROUPS = [(b"orders", b"processor")]
NAME = "far-1"


@pytest.fixture
async def servers(redis_url: str) -> AsyncIterator[Servers]:
    made = Servers(DashboardSettings(redis_url=redis_url))
    yield made
    await made.close()


@pytest.fixture
def connect(redis_url: str) -> Iterator[Callable[[], redis_py.Redis]]:
    """``connect()``: a client of one connection, as a worker has it."""
    made: list[redis_py.Redis] = []

    def one() -> redis_py.Redis:
        made.append(redis_py.Redis.from_url(redis_url, single_connection_client=True))
        return made[-1]

    yield one
    for client in made:
        client.close()


def report(raw: RawRedis, *clients: int, server: str = "") -> None:
    """Leave in Redis what a live worker of another machine leaves, with these connections."""
    info: Any = raw.info("server")
    facts = {"host": "far", "pid": 7, "server": server or info["run_id"], "clients": clients}
    if not raw.exists("orders"):
        raw.xgroup_create("orders", "processor", "0", mkstream=True)
    raw.xgroup_createconsumer("orders", "processor", NAME)
    raw.sadd(registry_key("orders", "processor"), NAME)
    raw.set(liveness_key("orders", "processor", NAME), "another machine/7/x", px=3_600_000)
    raw.hset(workers_key("orders", "processor"), NAME, json.dumps(facts))


def closed_connection(raw: RawRedis, connect: Callable[[], redis_py.Redis]) -> int:
    """Return the id of a connection that the server has closed."""
    number = int(connect().client_id())
    assert raw.client_kill_filter(_id=str(number)) == 1
    return number


async def judged(servers: Servers, watch: ConnectionWatch | None = None) -> StreamWorker:
    workers = await servers.redis(lambda admin: read_workers(admin, GROUPS))
    (worker,) = await (watch or ConnectionWatch(servers)).mark_disconnected(workers)
    return worker


async def test_a_worker_without_connections_is_dead_before_its_liveness_ends(
    servers: Servers, raw: RawRedis, connect: Callable[[], redis_py.Redis]
) -> None:
    alive = connect()
    report(raw, closed_connection(raw, connect), int(alive.client_id()))
    assert (await judged(servers)).state is ConsumerState.LIVE  # one of the two is open

    report(raw, closed_connection(raw, connect), closed_connection(raw, connect))

    worker = await judged(servers)
    assert worker.state is ConsumerState.DEAD
    assert worker.disconnected
    assert worker.lease_s is not None


async def test_a_worker_that_connects_again_between_two_looks_is_alive(
    servers: Servers, raw: RawRedis, connect: Callable[[], redis_py.Redis]
) -> None:
    report(raw, closed_connection(raw, connect))
    again = connect()
    pauses: list[float] = []

    async def report_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        report(raw, int(again.client_id()))

    worker = await judged(servers, ConnectionWatch(servers, pause=report_meanwhile))

    assert worker.state is ConsumerState.LIVE
    assert len(pauses) == 1


async def test_connections_of_another_process_of_the_server_prove_nothing(
    servers: Servers, raw: RawRedis, connect: Callable[[], redis_py.Redis]
) -> None:
    """After a restart or a fail-over the ids belong to the previous server."""
    report(raw, closed_connection(raw, connect), server="0" * 40)

    assert (await judged(servers)).state is ConsumerState.LIVE


@pytest.mark.parametrize("refused", ["-client|list", "-info"])
async def test_without_the_right_to_ask_the_liveness_key_decides(
    redis_url: str, raw: RawRedis, connect: Callable[[], redis_py.Redis], refused: str
) -> None:
    """And the server is not queried again by each page: it records each refusal."""
    raw.acl_log_reset()
    raw.acl_setuser(
        "viewer",
        enabled=True,
        passwords=["+viewer-1"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=[refused],
    )
    servers = Servers(DashboardSettings(redis_url=redis_url.replace("://", "://viewer:viewer-1@", 1)))
    watch = ConnectionWatch(servers)
    info: Any = raw.info("server")
    number = closed_connection(raw, connect)
    facts = WorkerFacts(server=str(info["run_id"]), clients=(number,))
    worker = StreamWorker("orders", "processor", NAME, ConsumerState.LIVE, 0, 0, 10_000, facts)

    first = await watch.mark_disconnected([worker])
    refusals = [one["count"] for one in raw.acl_log()]
    second = await watch.mark_disconnected([worker])

    assert [*first, *second] == [worker, worker]
    assert refusals == [1]
    assert [one["count"] for one in raw.acl_log()] == refusals
    await servers.close()
    raw.acl_deluser("viewer")


def clients_of(raw: RawRedis) -> list[int] | None:
    """Return the connections that the worker ``w-1`` has reported last; None if it has reported nothing."""
    report: Any = raw.hget(workers_key("orders", "shop"), "w-1")
    return None if report is None else list(json.loads(report).get("clients", ()))


def a_consumer(client: Any, handler: Any, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """Return a worker that renews nothing."""
    monkeypatch.setattr("conquiet.runtime.heartbeat.RENEW_S", 3_600.0)
    return Consumer(
        streams=["orders"],
        redis=client,
        handler=handler,
        group="shop",
        consumer_id="w-1",
        concurrency=1,
        report_activity=True,
        claim_idle_ms=3_600_000,
        prefetch=0,
    )


def close_all(raw: RawRedis, clients: list[int]) -> None:
    assert {int(one["id"]) for one in raw.client_list()} >= set(clients)
    for number in clients:
        raw.client_kill_filter(_id=str(number))


async def test_a_worker_reports_its_new_connection_when_it_has_connected_again(
    redis_url: str, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with its next heartbeat: it would be shown as dead until then."""

    async def ignore(_message: RuntimeMessage, _ctx: MessageContext) -> None: ...

    async with redis.asyncio.Redis.from_url(redis_url) as client, a_consumer(client, ignore, monkeypatch):
        await wait_until_async(lambda: len(clients_of(raw) or ()) == 2)
        before = clients_of(raw) or []

        close_all(raw, before)

        await wait_until_async(lambda: bool(set(clients_of(raw) or ()) - set(before)))
        assert {int(one["id"]) for one in raw.client_list()} & set(clients_of(raw) or ())


async def test_a_busy_worker_reports_that_the_server_has_closed_its_connections(
    redis_url: str, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing while its handlers run, and connects again when one has ended: until then it reports none."""
    started, may_end = asyncio.Event(), asyncio.Event()

    async def work(_message: RuntimeMessage, _ctx: MessageContext) -> None:
        started.set()
        await may_end.wait()

    async with redis.asyncio.Redis.from_url(redis_url) as client, a_consumer(client, work, monkeypatch):
        for _ in range(2):  # one runs, and nothing is fetched in advance
            raw.xadd("orders", {"data": "{}"})
        await started.wait()
        await wait_until_async(lambda: len(clients_of(raw) or ()) == 2)

        close_all(raw, clients_of(raw) or [])

        await wait_until_async(lambda: clients_of(raw) == [])
        may_end.set()


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.xdist_group("browser")
async def test_a_worker_killed_on_another_machine_turns_red(
    page: Page,
    serve: Serve,
    raw: RawRedis,
    start_worker: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its liveness key is still there. ``benchmarks/dashboard.py --only red`` times it: within two seconds."""
    monkeypatch.setattr("conquiet.management.workers.has_ended", lambda _token: False)
    served = serve()
    worker = start_worker()
    await page.goto(f"{served.url}/workers")
    row = page.locator("tr[data-worker]")
    await expect(row).to_have_attribute("data-state", "live")
    key = liveness_key("orders", "processor", str(await row.get_attribute("data-worker")))
    token = raw.get(key)
    assert token is not None

    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(worker.wait)
    raw.set(key, token, px=3_600_000)  # it would expire in 15 s, so another fact is seen

    await expect(row).to_have_attribute("data-state", "dead")
    await expect(row).to_contain_text("its connections are closed")
    assert raw.exists(key)
