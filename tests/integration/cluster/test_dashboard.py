"""The dashboard before a Redis Cluster of three masters: streams of all slots, dead letters, a bulk run."""

import json
import re
from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from httpx import ASGITransport, AsyncClient

from conquiet.dashboard import EVERYTHING, Access, DashboardSettings, dashboard
from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.processor.keys import keys_of
from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.routing import slot_of
from conquiet.redis_transport.worker_reports import workers_key
from conquiet.testing import RedisClusterServer, wait_until_async

STREAMS = [f"shop-{number}" for number in range(8)]


@pytest.fixture
def raw(redis_cluster: RedisClusterServer) -> Iterator[redis.RedisCluster]:
    made = redis.RedisCluster.from_url(redis_cluster.node_url, protocol=2)
    yield made
    made.close()


@pytest.fixture
async def client(redis_cluster: RedisClusterServer) -> AsyncIterator[AsyncClient]:
    url = f"{redis_cluster.node_url}?cluster=true"
    app = dashboard(DashboardSettings(redis_url=url), authorize=lambda _: Access("ann", EVERYTHING))
    yield AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1", follow_redirects=True, timeout=60)
    await app.close()


async def test_streams_of_every_node_are_shown_and_dead_letters_replayed(
    client: AsyncClient, raw: redis.RedisCluster
) -> None:
    assert len({slot_of(name) * 3 // 16_384 for name in STREAMS}) == 3, "streams of all three masters"
    for name in STREAMS:
        raw.xgroup_create(name, "processor", "0", mkstream=True)
    payload = {"v": 1, "event": "paid", "id": "m-1", "data": {}}
    record = DeadRecord(
        reason="attempts",
        event="paid",
        id="m-1",
        entry_id="1-1",
        group="processor",
        error_type="ValueError",
        payload=payload,
    )
    raw.xadd(keys_of(STREAMS[3]).dead, {"data": encode_record(record)})

    overview = (await client.get("/")).text
    assert all(f'title="{name}"' in overview for name in STREAMS)
    for path in ("/jobs", "/workers", "/dead", "/runs", "/audit", "/schedules"):
        assert (await client.get(path)).status_code == 200
    for name in STREAMS:
        assert "Groups" in (await client.get(f"/stream?stream={name}")).text
    page = f"/dead?stream={STREAMS[3]}"
    shown = await client.get(page)
    assert "ValueError" in shown.text

    token = re.search(r'name="csrf" value="(\w+)"', shown.text)
    assert token is not None
    fields = {"csrf": token[1], "do": "replay", "scope": "all", "stream": STREAMS[3]}
    answer = await client.post("/dead/act", data=fields)
    run = str(answer.url).partition("id=")[2].partition("&")[0]

    async def is_in(state: str) -> bool:
        return f'data-state="{state}"' in (await client.get(f"/run?id={run}")).text

    await wait_until_async(lambda: is_in("counted"))
    await client.post("/run/confirm", data={"csrf": token[1], "id": run, "stream": STREAMS[3], "do": "replay"})
    await wait_until_async(lambda: is_in("done"))
    assert raw.xlen(STREAMS[3]) == 1
    assert raw.xlen(keys_of(STREAMS[3]).dead) == 0


async def test_a_worker_without_connections_is_dead_on_whichever_node(
    client: AsyncClient, raw: redis.RedisCluster
) -> None:
    """Client ids belong to a node: the ids of a worker are queried on the node that it named."""
    for name in STREAMS:
        node = raw.get_node_from_key(name)  # type: ignore[no-untyped-call] # of redis-py
        own = raw.get_redis_connection(node).client_id()
        run_id = raw.info("server", target_nodes=node)["run_id"]
        raw.xgroup_create(name, "processor", "0", mkstream=True)
        for kind, clients in (("open", [own]), ("closed", [2**40])):
            worker = f"{kind}:{name}"
            raw.sadd(registry_key(name, "processor"), worker)
            raw.set(liveness_key(name, "processor", worker), "another machine/7/x", px=3_600_000)
            raw.hset(workers_key(name, "processor"), worker, json.dumps({"server": run_id, "clients": clients}))

    page = (await client.get("/workers")).text

    states = dict(re.findall(r'data-worker="([^"]+)" data-state="(\w+)"', page))
    assert {name for name, state in states.items() if state == "dead"} == {f"closed:{name}" for name in STREAMS}
    assert {name for name, state in states.items() if state == "live"} == {f"open:{name}" for name in STREAMS}
    assert "its connections are closed" in page
