"""Facts that a worker reports about itself: with the renewal of its liveness key, in one command, at no extra cost."""

import msgspec
import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.management.history import HistoryRange, read_history, read_sparklines
from conquiet.management.models import ConsumerState
from conquiet.management.redis_admin import RedisAdmin
from conquiet.management.workers import read_workers
from conquiet.redis_transport.liveness import liveness_key
from conquiet.redis_transport.worker_reports import deploys_key, history_base, workers_key
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async

GROUP = "processor"


async def test_a_stopped_worker_has_left_its_counts(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(40)
    seen = 0

    async def handler(_message: RuntimeMessage, _ctx: MessageContext) -> None:
        nonlocal seen
        seen += 1
        if seen % 4 == 0:
            raise ValueError

    running = run(make_engine(handler, concurrency=4, claim_idle_ms=60_000, report_activity=True))
    await wait_until_async(lambda: seen == 40)
    await running.stop()

    with RedisAdmin(raw) as admin:
        for span in HistoryRange:
            history = read_history(admin, stream.encode(), [GROUP.encode()], span)
            assert sum(point.ok for point in history.points) == 30
            assert sum(point.failed for point in history.points) == 10
        (minutes,) = read_sparklines(admin, [(stream.encode(), [GROUP.encode()])]).values()
    assert len(minutes) == 60
    assert sum(minutes) == 40
    assert not raw.hexists(workers_key(stream, GROUP), "gone")
    assert raw.hlen(workers_key(stream, GROUP)) == 0  # it reported its end


async def test_a_running_worker_is_described_from_its_start(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONQUIET_APP_VERSION", "shop 7")

    async def handler(_message: RuntimeMessage, _ctx: MessageContext) -> None: ...

    engine = make_engine(handler, concurrency=3, report_activity=True)
    running = run(engine)
    await wait_until_async(lambda: raw.hlen(workers_key(stream, GROUP)) == 1)

    with RedisAdmin(raw) as admin:
        (found,) = read_workers(admin, [(stream.encode(), GROUP.encode())])
        assert found.name == engine.consumer_id
        assert found.state is ConsumerState.LIVE
        assert found.facts is not None
        assert (found.facts.version, found.facts.concurrency) == ("shop 7", 3)
        assert raw.zrange(deploys_key(stream), 0, -1) == [b"shop 7"]

        raw.delete(liveness_key(stream, GROUP, engine.consumer_id))
        (found,) = read_workers(admin, [(stream.encode(), GROUP.encode())])
        assert found.state is ConsumerState.DEAD
        assert found.facts is not None  # the process can still be identified
    await running.stop()


async def test_a_report_that_is_refused_costs_no_liveness(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    """Another program has put something else where the report goes."""
    for key in (workers_key(stream, GROUP), deploys_key(stream), history_base(stream, GROUP)):
        raw.set(key, "not ours")
    enqueue(5)
    seen = 0

    async def handler(_message: RuntimeMessage, _ctx: MessageContext) -> None:
        nonlocal seen
        seen += 1

    engine = make_engine(handler, concurrency=2, report_activity=True)
    running = run(engine)
    await wait_until_async(lambda: seen == 5)

    assert raw.exists(liveness_key(stream, GROUP, engine.consumer_id))
    await running.stop()
    assert raw.get(workers_key(stream, GROUP)) == b"not ours"


async def test_a_version_is_marked_once_and_again_after_another(raw: RawRedis, stream: str) -> None:
    from conquiet.redis_transport.worker_reports import RENEW_NAME

    def start(version: str) -> None:
        keys = (f"{stream}:a", f"{stream}:n", f"{stream}:w", deploys_key(stream), f"{stream}:h")
        facts = msgspec.json.encode({"host": "h"})
        assert raw.eval(RENEW_NAME, 5, *keys, "token", 15_000, "name", facts, version) == 1

    for version in ("1", "1", "2", "2", ""):
        start(version)

    assert raw.zrange(deploys_key(stream), 0, -1) == [b"1", b"2"]
    scores = dict(raw.zrange(deploys_key(stream), 0, -1, withscores=True))
    raw.zadd(deploys_key(stream), {"1": scores[b"1"] - 100, "2": scores[b"2"] - 50})
    start("1")
    assert raw.zrange(deploys_key(stream), 0, -1) == [b"2", b"1"]
