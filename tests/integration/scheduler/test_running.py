"""The loop itself, in real time: when it fires, what it notices, how it ends, and the effect of an outage."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
from prometheus_client import REGISTRY

from conquiet.errors import ConfigurationError, LifecycleError, QueueError
from conquiet.scheduler import Every, Once, Schedules
from conquiet.scheduler.entries import due_of, from_ms
from conquiet.testing import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.scheduler.conftest import Stage

    from conquiet.testing import FaultProxy, RedisServer


class WrongClock:
    """A host with a wrong date, and perhaps another speed of its monotonic clock."""

    def __init__(self, off_by_s: float, speed: float = 1.0) -> None:
        self._off_by_s = off_by_s
        self._speed = speed

    def monotonic(self) -> float:
        return time.monotonic() * self._speed + self._off_by_s

    def time(self) -> float:
        return time.time() + self._off_by_s


def due_ms(fire_id: str) -> int:
    due = due_of(fire_id)
    assert due is not None
    return round(due.timestamp() * 1_000)


async def test_hosts_with_wrong_clocks_fire_each_tick_once_and_never_early(stage: Stage) -> None:
    """A year ahead, a day behind, and a clock that is too fast: it wakes early, sends its request, and is refused."""
    entry = stage.entry(when=Every(0.5))
    clocks = [WrongClock(365 * 86_400.0), WrongClock(-86_400.0), WrongClock(0.0, speed=3.0)]
    for clock in clocks:
        stage.run(stage.real(entry, clock=clock))

    await stage.wait_for(6)

    messages = await stage.messages()
    dues = [due_ms(envelope["id"]) for _, envelope in messages]
    assert dues == list(range(dues[0], dues[0] + 500 * len(dues), 500))
    assert all(written_ms >= due for (written_ms, _), due in zip(messages, dues, strict=True))


async def test_a_change_by_another_host_is_noticed_while_the_loop_sleeps(stage: Stage) -> None:
    """The host's next tick is a day away; an entry that another host adds fires in time."""
    host = stage.real(stage.entry("daily", Every(86_400)))
    stage.run(host)
    await wait_until_async(host.list_entries)
    async with Schedules(stage.redis, group=stage.group) as operator:
        seconds, _ = await stage.redis.time()
        await operator.add(stage.entry("soon", Once(from_ms(seconds * 1_000 + 1_000))))

        await stage.wait_for(1)

        await operator.add(stage.entry("beat", Every(0.1)))
        await stage.wait_for(3)
        await operator.pause("beat")
        fired = len(await stage.ids())
        await asyncio.sleep(0.3)  # three ticks long: nothing may come
        assert len(await stage.ids()) == fired


async def test_stop_ends_a_sleeping_loop_from_another_thread(stage: Stage) -> None:
    host = stage.real(stage.entry(when=Every(86_400)), poll_s=1.0)
    running = stage.run(host)
    await wait_until_async(host.list_entries)

    threading.Thread(target=host.stop).start()

    await asyncio.wait_for(running, 60)
    with pytest.raises(LifecycleError):
        await host.start()


async def test_a_stop_event_ends_it_too(stage: Stage) -> None:
    host, event = stage.real(stage.entry(when=Every(0.1))), asyncio.Event()
    running = asyncio.create_task(host.start(event))
    await stage.wait_for(1)

    event.set()

    await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("event", [threading.Event(), asyncio.Event])
async def test_a_stop_event_that_would_never_end_it_is_refused(stage: Stage, event: Any) -> None:
    host = stage.real()

    with pytest.raises(ConfigurationError, match=r"asyncio\.Event"):
        await host.start(event)
    await host.close()


async def test_as_a_context_it_fires_until_the_block_ends(stage: Stage) -> None:
    async with stage.real(stage.entry(when=Every(0.1))) as host:
        assert [listed.entry.name for listed in await host.list_entries()] == ["beat"]  # stored by now
        await stage.wait_for(2)

    fired = await stage.ids()
    await asyncio.sleep(0.3)  # three ticks long: nothing may come
    assert await stage.ids() == fired


async def test_a_context_raises_the_error_of_its_start_or_its_run(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(stage.url)
    host = stage.real(stage.entry(), url=proxy.url_for(stage.url), give_up_after_s=0.1)
    await host.__aenter__()
    proxy.refuse()
    proxy.disconnect()
    assert host._background is not None
    await asyncio.wait([host._background], timeout=10)
    with pytest.raises(QueueError):
        await host.__aexit__(None, None, None)
    with pytest.raises(QueueError):
        async with stage.real(stage.entry(), url=proxy.url_for(stage.url)):
            pytest.fail("it cannot have started")


async def test_a_stop_before_the_start_means_it_never_runs(stage: Stage) -> None:
    host = stage.real(stage.entry())
    host.stop()

    with pytest.raises(LifecycleError):
        await host.start()
    assert await host.list_entries() == []


async def test_a_restart_of_redis_loses_no_tick_and_repeats_none(
    stage: Stage, private_redis: Callable[..., RedisServer]
) -> None:
    server = private_redis(aof=True)
    client = redis.asyncio.Redis.from_url(server.url)  # the test's own; it knows nothing of the outage
    hosts = [stage.real(stage.entry(when=Every(0.2), misfire_grace_s=60), url=server.url) for _ in range(2)]
    for host in hosts:
        stage.run(host)
    await wait_until_async(lambda: _at_least(client.xlen, stage.stream, 3))

    await client.connection_pool.disconnect()
    await asyncio.to_thread(server.kill)
    labels = {"group": stage.group}
    await wait_until_async(lambda: REGISTRY.get_sample_value("conquiet_scheduler_errors_total", labels))
    await asyncio.to_thread(server.restart)
    before = await client.xlen(stage.stream)
    await wait_until_async(lambda: _at_least(client.xlen, stage.stream, before + 5))

    entries: Any = await client.xrange(stage.stream)
    dues = [due_ms(json.loads(fields[b"data"])["id"]) for _, fields in entries]
    assert dues == list(range(dues[0], dues[0] + 200 * len(dues), 200))
    assert [listed.missed for listed in await hosts[0].list_entries()] == [0]
    await client.aclose()


async def test_an_outage_that_lasts_is_an_error_and_not_an_endless_wait(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(stage.url)
    host = stage.real(stage.entry(), url=proxy.url_for(stage.url), give_up_after_s=0.3)
    running = stage.run(host)
    await wait_until_async(host.list_entries)

    proxy.refuse()
    proxy.disconnect()

    with pytest.raises(QueueError):
        await asyncio.wait_for(running, 60)


async def test_a_stream_that_refuses_for_long_ends_nothing(stage: Stage) -> None:
    """Only after a server did not reply is it given up."""
    bad = f"{stage.stream}-bad"
    await stage.redis.set(bad, "not a stream")
    running = stage.run(stage.real(stage.entry("oops", Every(0.1), stream=bad), stage.entry(), give_up_after_s=0.1))
    labels = {"group": stage.group}

    async def refused_for_long() -> bool:
        return (REGISTRY.get_sample_value("conquiet_scheduler_errors_total", labels) or 0) >= 4

    await wait_until_async(refused_for_long)
    await stage.redis.delete(bad)

    await wait_until_async(lambda: stage.ids(bad))
    assert not running.done()


async def test_an_unreachable_server_at_the_start_is_an_error_at_once(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(stage.url)
    proxy.refuse()
    host = stage.real(stage.entry(), url=proxy.url_for(stage.url))

    with pytest.raises(QueueError):
        await host.start()


async def test_an_idle_host_costs_a_handful_of_commands_a_second(stage: Stage) -> None:
    """The server counts them: per poll TIME, SMEMBERS and one HMGET for each stream."""
    host = stage.real(stage.entry(when=Every(86_400)), poll_s=0.25)
    await stage.redis.config_resetstat()
    stage.run(host)

    async def calls(command: str) -> int:
        stats = await stage.redis.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))

    # Everything (two hashes) is read once, by the first poll: nothing was stored before. Then it is idle.
    await wait_until_async(lambda: _at_least(calls, "hgetall", 2))
    started = time.monotonic()
    await stage.redis.config_resetstat()

    await wait_until_async(lambda: _at_least(calls, "time", 4))
    stats = await stage.redis.info("commandstats")
    seconds = time.monotonic() - started
    commands = {name: stats[f"cmdstat_{name}"]["calls"] for name in ("time", "smembers", "hmget")}

    assert max(commands.values()) <= seconds / 0.25 + 1
    assert not {"cmdstat_evalsha", "cmdstat_eval", "cmdstat_hgetall"} & stats.keys()


async def _at_least(count: Callable[[str], Awaitable[int]], what: str, wanted: int) -> bool:
    return await count(what) >= wanted


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"poll_s": 1.5}, "poll_s"),
        ({"poll_s": 0}, "poll_s"),
        ({"give_up_after_s": -1}, "give_up"),
        ({"group": ""}, "group"),
    ],
)
async def test_wrong_settings_are_refused_before_anything_is_sent(
    stage: Stage, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        stage.real(**settings)
