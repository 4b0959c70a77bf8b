"""Bulk runs without a page: bounded by their start, confirmed once counted, found after any number of later runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio
from tests.integration.dashboard.conftest import AddDead, OpenClient
from tests.integration.dashboard.test_requests import post
from tests.redis_clients import RawRedis

from conquiet.errors import ConfigurationError
from conquiet.management.bulk_runs import BulkRun, BulkRuns, RunAction, RunState
from conquiet.processor.dead_letters import DeadFilter
from conquiet.redis_transport.client import clone_async
from conquiet.testing import FaultProxy, wait_until_async


@pytest.fixture
async def runs(redis_url: str) -> AsyncIterator[BulkRuns]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield BulkRuns(client, "this dashboard")


async def create(runs: BulkRuns, **where: Any) -> BulkRun:
    return await runs.create(action=RunAction.REPLAY, stream="orders", where=DeadFilter(**where), user="ann")


@pytest.mark.parametrize("where", [{}, {"before_ms": 4_102_444_800_000}])
async def test_a_run_leaves_alone_what_died_after_it_was_started(
    runs: BulkRuns, add_dead: AddDead, raw: RawRedis, where: dict[str, int]
) -> None:
    """Otherwise a message that dies of the replay is replayed without end, even if a later bound was requested."""
    add_dead("orders", 2)
    await asyncio.sleep(0.005)  # the server's next millisecond
    run = await create(runs, **where)
    await asyncio.sleep(0.005)
    add_dead("orders", 3, event="later")
    await runs.execute(run.id)
    await runs.confirm(run.id)
    await runs.execute(run.id)

    ended = await runs.get(run.id)
    assert ended is not None
    assert (ended.state, ended.matched, ended.done) == (RunState.DONE, 2, 2)
    assert (raw.xlen("orders"), raw.xlen("{orders}:dead")) == (2, 3)


async def test_a_run_is_not_confirmed_before_it_is_counted_nor_twice(
    runs: BulkRuns, add_dead: AddDead, raw: RawRedis
) -> None:
    """A user confirms a number. Without one there is nothing to confirm."""
    add_dead("orders", 2)
    run = await create(runs)
    with pytest.raises(ConfigurationError, match="the run is counting"):
        await runs.confirm(run.id)
    await runs.execute(run.id)
    await runs.confirm(run.id)
    with pytest.raises(ConfigurationError, match="the run is running"):
        await runs.confirm(run.id)
    await runs.cancel(run.id)
    with pytest.raises(ConfigurationError, match="the run is cancelled"):
        await runs.confirm(run.id)

    assert raw.xlen("orders") == 0


async def test_an_abandoned_run_is_found_behind_many_newer_ones(runs: BulkRuns, add_dead: AddDead) -> None:
    add_dead("orders", 1)
    oldest = await create(runs)
    await runs.execute(oldest.id)
    await runs.confirm(oldest.id)
    for _ in range(60):
        await runs.cancel((await create(runs)).id)

    assert [run.id for run in await runs.find_abandoned()] == [oldest.id]


@pytest.fixture
async def through_proxy(
    fault_proxy: Callable[[str], FaultProxy], redis_url: str
) -> AsyncIterator[tuple[BulkRuns, FaultProxy]]:
    proxy = fault_proxy(redis_url)
    async with redis.asyncio.Redis.from_url(proxy.url_for(redis_url)) as client, clone_async(client) as own:
        yield BulkRuns(own, "behind the proxy"), proxy


async def test_a_run_stops_when_its_progress_cannot_be_saved(
    through_proxy: tuple[BulkRuns, FaultProxy], runs: BulkRuns, add_dead: AddDead, raw: RawRedis
) -> None:
    """Without the lease another process takes the run over, and without a save nothing notices a cancellation."""
    add_dead("orders", 400)
    fragile, proxy = through_proxy
    run = await runs.create(action=RunAction.DISCARD, stream="orders", where=DeadFilter(), user="ann", rate_per_s=2.0)
    await runs.execute(run.id)
    await runs.confirm(run.id)
    working = asyncio.create_task(fragile.execute(run.id))
    try:
        await wait_until_async(lambda: raw.xlen("{orders}:dead") < 400)
        proxy.drop_next_request(b'"state":"running"')
        await asyncio.wait_for(working, 30)
    finally:
        working.cancel()

    assert raw.xlen("{orders}:dead") > 300
    assert [left.id for left in await runs.find_abandoned()] == [run.id]


async def test_a_run_has_failed_when_the_server_refuses_to_save_it(
    through_proxy: tuple[BulkRuns, FaultProxy], runs: BulkRuns, add_dead: AddDead
) -> None:
    add_dead("orders", 1)
    fragile, proxy = through_proxy
    run = await create(runs)
    await runs.execute(run.id)
    await runs.confirm(run.id)
    proxy.drop_next_request(b'"state":"done"')
    await fragile.execute(run.id)

    ended = await runs.get(run.id)
    assert ended is not None
    assert (ended.state, ended.error) == (RunState.FAILED, "QueueError")


async def test_a_failed_action_is_in_the_audit_without_the_form_token(
    open_client: OpenClient,
    add_dead: AddDead,
    raw: RawRedis,
) -> None:
    add_dead("orders", 1)
    client = open_client()
    answer = await post(client, "/stream?stream=orders", "/run/confirm", stream="orders", do="replay", id="no-such-run")

    assert answer.status_code == 409
    asked, failed = [fields for _, fields in raw.xrange("conquiet:audit")]
    assert failed[b"detail"].startswith(b"failed: ")
    assert (asked[b"user"], asked[b"action"]) == (failed[b"user"], failed[b"action"])
    assert b"id=no-such-run" in asked[b"detail"]
    assert b"csrf" not in b"".join(asked.values())
