"""Publishing to one target: pauses while it is unavailable, and isolation of a message that breaks it."""

import json
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import NO_WAIT, add, rows

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import (
    Outbox,
    OutboxMessage,
    OutboxRelay,
    PublishOutcome,
)
from conquiet.transactional.targets import DEFERRED, PUBLISHED, ToStream


def add_numbered(engine: Engine, number: int, key: str | None = None) -> None:
    with DbSession(engine) as session:
        for n in range(number):
            Outbox().add(session, "t", {"n": n}, key)


class Away:
    """A target of a user, with the errors of another library."""

    def __init__(self, error: Exception, *, takes: int | None = None) -> None:
        self.error: Exception | None = error
        self.takes = takes
        self.taken: list[int] = []

    def publish(self, messages: Sequence[OutboxMessage]) -> Any:
        if self.error is not None and not (len(messages) == 1 and messages[0].seq == self.takes):
            raise self.error
        self.taken += [message.seq for message in messages]
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


def test_a_target_that_stays_away_is_tried_less_and_less_often(engine: Engine) -> None:
    class Away:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            raise OSError("no route to host")

    add(engine, "message")
    relay = OutboxRelay(engine, {"t": Away()}, backoff=Backoff(base_s=100.0, cap_s=1_000.0, jitter=0.0))
    publisher = relay._routes[0].publisher

    waits_s = []
    for _ in range(5):
        publisher._not_before = 0.0
        relay.relay_once()
        waits_s.append(publisher._not_before - time.monotonic())

    assert [round(wait_s / 100) for wait_s in waits_s] == [1, 2, 4, 8, 10]
    assert relay.unavailable_targets == ["t"]


def test_an_outage_with_an_unknown_error_counts_no_attempt(engine: Engine) -> None:
    add_numbered(engine, 6)
    target = Away(RuntimeError("connection refused"))
    relay = OutboxRelay(engine, {"t": target}, max_attempts=2, backoff=NO_WAIT)

    for _ in range(5):
        assert relay.relay_once().refused == 0
    assert relay.unavailable_targets
    target.error = None
    relay.drain()

    assert len(target.taken) == 6
    assert Outbox().parked(engine) == []


def test_one_message_that_breaks_the_target_is_found_among_others(engine: Engine) -> None:
    add_numbered(engine, 3)
    target = Away(RuntimeError("not this one"), takes=2)
    relay = OutboxRelay(engine, {"t": target}, max_attempts=5, backoff=NO_WAIT)

    done = relay.relay_once()

    assert (done.published, done.refused) == (1, 2)
    assert not relay.unavailable_targets


def test_a_target_lost_during_isolation_is_left_alone(engine: Engine) -> None:
    add_numbered(engine, 3)

    class Failing(Away):
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            if len(messages) > 1:
                raise RuntimeError
            raise ConnectionResetError

    relay = OutboxRelay(engine, {"t": Failing(RuntimeError())}, max_attempts=1, backoff=NO_WAIT)

    assert relay.relay_once().deferred == 3
    assert Outbox().parked(engine) == []


def test_a_target_that_is_away_is_given_a_rest(engine: Engine) -> None:
    add_numbered(engine, 1)
    asked: list[int] = []

    class Gone:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            asked.append(len(messages))
            raise ConnectionRefusedError

    relay = OutboxRelay(engine, {"t": Gone()}, backoff=Backoff(base_s=60.0, cap_s=60.0, jitter=0.0))

    assert [relay.relay_once().deferred for _ in range(2)] == [1, 0]

    assert asked == [1]


def test_a_target_that_defers_all_is_tried_after_a_pause(engine: Engine) -> None:
    add_numbered(engine, 3)
    asked: list[int] = []

    class Full:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            asked.append(len(messages))
            return [(PublishOutcome.DEFERRED, "")] * len(messages)

    assert OutboxRelay(engine, {"t": Full()}).drain(timeout_s=5.0).deferred == 3

    assert asked == [3]


@pytest.mark.parametrize("answer", [None, [], [PUBLISHED] * 4, [PublishOutcome.PUBLISHED] * 3, [True] * 3, "abc"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_target_without_a_result_for_each_message_deletes_nothing(
    engine: Engine,
    answer: Any,
    one_by_one: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    add_numbered(engine, 3)

    class Careless:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            if one_by_one and len(messages) > 1:
                raise RuntimeError
            return answer

    relay = OutboxRelay(engine, {"t": Careless()}, max_attempts=1, backoff=NO_WAIT)

    with pytest.raises(ConfigurationError, match=r"'t' must return .* for each message"):
        relay.relay_once()

    assert rows(engine, "conquiet_outbox") == 3
    assert Outbox().parked(engine) == []


def test_after_a_refused_message_nothing_of_its_key_goes_out() -> None:
    keys = [b"a", None, b"a", b"b", None]
    large = json.dumps({"text": "x" * 100}).encode()
    messages = [OutboxMessage(seq, str(seq), key, large if seq < 2 else b"{}") for seq, key in enumerate(keys)]
    sent: list[bytes] = []
    target = ToStream(redis.Redis(), "ledger", max_payload_bytes=60)
    target._connection.call = lambda _, packed, **__: sent.append(packed)  # type: ignore[method-assign]

    results = target.publish(messages)

    assert [outcome for outcome, _ in results[:2]] == [PublishOutcome.REFUSED] * 2
    assert results[2:] == [DEFERRED, PUBLISHED, PUBLISHED]
    assert sent[0].count(b"_outbox_id") == 2, "one command for both that go out"
    target.close()


def test_batches_shrink_where_publishing_takes_long_and_grow_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("conquiet.transactional.target_publisher.time", SimpleNamespace(monotonic=lambda: now[0]))
    sizes: list[int] = []
    seconds_each = [1.0]

    class Slow:
        def publish(self, messages: Sequence[OutboxMessage]) -> Any:
            sizes.append(len(messages))
            now[0] += seconds_each[0] * len(messages)
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    add_numbered(engine, 200)
    relay = OutboxRelay(engine, {"t": Slow()}, batch=64, backoff=NO_WAIT)
    relay.relay_once()
    relay.relay_once()
    seconds_each[0] = 0.01
    for _ in range(3):
        relay.relay_once()

    assert sizes == [64, 20, 40, 64, 12]


def test_a_target_with_a_coroutine_function_is_refused(engine: Engine) -> None:
    """The relay would end with its first message."""

    class Asynchronous:
        async def publish(self, _: Sequence[OutboxMessage]) -> list[Any]:
            raise AssertionError("not awaited")

    with pytest.raises(ConfigurationError, match=r"publish\(\) of target 't' must be a plain function"):
        OutboxRelay(engine, {"t": Asynchronous()})  # type: ignore[dict-item]
