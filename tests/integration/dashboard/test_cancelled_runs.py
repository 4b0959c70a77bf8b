"""A bulk run is carried out once it is confirmed; a cancelled run leaves the dead letters that it has not reached."""

import threading
from typing import Any

import pytest
import redis.asyncio
from tests.integration.dashboard.conftest import AddDead, OpenClient
from tests.integration.dashboard.test_requests import post
from tests.redis_clients import RawRedis

from conquiet.dashboard import runs as dashboard_runs
from conquiet.errors import ConfigurationError
from conquiet.management.audit import record_action
from conquiet.management.bulk_runs import BulkRun, BulkRuns, RunAction, RunState
from conquiet.processor.dead_letters import DeadFilter
from conquiet.testing import wait_until_async

DEAD = "{orders}:dead"


async def start(client: Any, *, rate: str) -> tuple[str, dict[str, str]]:
    """Request a run that discards all dead letters, and return its id and the fields of its forms."""
    answer = await post(
        client, "/dead?stream=orders", "/dead/act", do="discard", scope="all", stream="orders", rate=rate
    )
    run = str(answer.url).partition("id=")[2].partition("&")[0]

    async def is_counted() -> bool:
        return 'data-state="counted"' in (await client.get(f"/run?id={run}")).text

    await wait_until_async(is_counted)
    return run, {"id": run, "stream": "orders", "do": "discard"}


async def test_a_cancelled_run_stops_and_leaves_the_rest(
    open_client: OpenClient,
    add_dead: AddDead,
    raw: RawRedis,
) -> None:
    """At one a second the run would take minutes: it cannot be done before the cancel comes."""
    add_dead("orders", 400)
    client = open_client()
    run, fields = await start(client, rate="1")
    await post(client, f"/run?id={run}", "/run/confirm", **fields)
    await wait_until_async(lambda: raw.xlen(DEAD) < 400)
    await post(client, f"/run?id={run}", "/run/cancel", **fields)

    assert 'data-state="cancelled"' in (await client.get(f"/run?id={run}")).text
    await wait_until_async(lambda: not raw.exists(f"conquiet:run:{run}:lease"))  # nothing works on it any more
    assert 0 < raw.xlen(DEAD) < 400
    assert 'data-state="cancelled"' in (await client.get(f"/run?id={run}")).text


async def test_a_run_confirmed_before_its_count_has_ended_is_carried_out(
    open_client: OpenClient,
    add_dead: AddDead,
    raw: RawRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page shows the count while the task that counted still writes the audit. No page is open afterwards."""
    add_dead("orders", 3)
    go_on = threading.Event()
    record = record_action

    def record_later(*arguments: Any, **facts: Any) -> Any:
        go_on.wait(60)
        return record(*arguments, **facts)

    monkeypatch.setattr(dashboard_runs, "record_action", record_later)
    client = open_client()
    run, fields = await start(client, rate="")
    await post(client, f"/run?id={run}", "/run/confirm", **fields)
    assert raw.xlen(DEAD) == 3
    go_on.set()

    await wait_until_async(lambda: raw.xlen(DEAD) == 0)


class Overtaken(BulkRuns):
    """Runs with a state that another process changes right after it was read."""

    def __init__(self, client: Any, cancels: BulkRuns) -> None:
        super().__init__(client, "slow")
        self._cancels = cancels

    async def get(self, run_id: str) -> BulkRun | None:
        found = await super().get(run_id)
        if found is not None and found.state is not RunState.CANCELLED:
            await self._cancels.cancel(run_id)
        return found


async def test_a_cancel_is_not_overwritten_by_a_confirm_or_a_count(redis_url: str, add_dead: AddDead) -> None:
    add_dead("orders", 3)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        runs = BulkRuns(client, "quick")
        made = [
            await runs.create(action=RunAction.DISCARD, stream="orders", where=DeadFilter(), user="ann")
            for _ in range(2)
        ]
        counted, counting = made
        await runs.execute(counted.id)
        overtaken = Overtaken(client, runs)

        with pytest.raises(ConfigurationError, match="the run is cancelled; it cannot become running"):
            await overtaken.confirm(counted.id)
        await overtaken.execute(counting.id)

        states = [found.state for one in made if (found := await runs.get(one.id)) is not None]
    assert states == [RunState.CANCELLED] * 2
