"""What a caller's function may do wrong, and what it must not cost: a message, or a letter."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from conquiet.bridge import Fence, Inbox, Letter, Outbox, OutboxRelay, Outcome, for_processor, for_rabbit, for_runtime
from conquiet.bridge.handlers import effect_once
from conquiet.bridge.rabbit_target import ToRabbit
from conquiet.bridge.targets import HELD, PUBLISHED, one_by_one
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, PayloadError, RabbitConnectionError
from conquiet.kernel.backoff import Backoff
from conquiet.queue.models import QueueMessage

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)
MESSAGE = QueueMessage("orders", "billing", "1-0", {})


async def pays(*_: Any) -> None:
    raise AssertionError("nobody awaits it")


class Pays:
    async def __call__(self, *_: Any) -> None:
        raise AssertionError("nobody awaits it")


def rows(engine: Engine, table: str) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar(f"SELECT COUNT(*) FROM {table}"))


def add(engine: Engine, number: int, key: str | None = None) -> None:
    with DbSession(engine) as session:
        for n in range(number):
            Outbox().add(session, "t", {"n": n}, key)


# ------------------------------------------------------------------ coroutines where a plain function is wanted
@pytest.mark.parametrize("function", [pays, Pays(), functools.partial(pays, 1)])
def test_a_coroutine_function_is_refused_before_any_message(engine: Engine, function: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: for_runtime(function, engine=engine, group="g"),
        lambda: for_processor(function, engine=engine, group="g"),
        lambda: for_rabbit(function, engine=engine, queue="q", key=str),
        lambda: Fence(function),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError, match="plain function"):
            make()


def test_a_coroutine_that_comes_back_from_a_plain_function_leaves_no_row_that_says_done(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="not done"):
        effect_once(engine, Inbox(), MESSAGE, lambda _: pays())
    handler = for_rabbit(lambda _message, _session: pays(), engine=engine, queue="q", key=lambda _: "k")  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="not done"):
        handler({})

    assert rows(engine, "conquiet_inbox") == 0


def test_a_fence_that_is_answered_by_a_coroutine_lets_nothing_pass(engine: Engine) -> None:
    fence = Fence(lambda _: pays())  # type: ignore[arg-type, return-value]

    with (
        pytest.raises(ConfigurationError),
        DbSession(engine) as session,
        fence.once(session, MESSAGE),
    ):
        Outbox().add(session, "t", {})

    assert rows(engine, "conquiet_outbox") == 0


# ------------------------------------------------------------------ targets that are away, slow or choosy
class Away:
    """A target of a user's, whose library has errors of its own."""

    def __init__(self, error: Exception, *, takes: int | None = None) -> None:
        self.error: Exception | None = error
        self.takes = takes
        self.taken: list[int] = []

    def publish(self, letters: Sequence[Letter]) -> Any:
        if self.error is not None and not (len(letters) == 1 and letters[0].seq == self.takes):
            raise self.error
        self.taken += [letter.seq for letter in letters]
        return [(Outcome.PUBLISHED, "")] * len(letters)


def test_an_outage_told_by_an_unknown_error_counts_against_no_letter(engine: Engine) -> None:
    add(engine, 6)
    target = Away(RuntimeError("connection refused"))
    relay = OutboxRelay(engine, {"t": target}, max_attempts=2, backoff=NO_WAIT)

    for _ in range(5):
        assert relay.relay_once().refused == 0
    assert not relay.reaches_all_targets
    target.error = None
    relay.drain()

    assert len(target.taken) == 6
    assert Outbox().parked(engine) == []


def test_one_letter_that_breaks_the_target_is_found_among_others(engine: Engine) -> None:
    add(engine, 3)
    target = Away(RuntimeError("not this one"), takes=2)
    relay = OutboxRelay(engine, {"t": target}, max_attempts=5, backoff=NO_WAIT)

    done = relay.relay_once()

    assert (done.published, done.refused) == (1, 2)
    assert relay.reaches_all_targets


def test_a_target_that_goes_away_while_letters_are_tried_one_by_one_is_left_alone(engine: Engine) -> None:
    add(engine, 3)

    class Failing(Away):
        def publish(self, letters: Sequence[Letter]) -> Any:
            if len(letters) > 1:
                raise RuntimeError
            raise ConnectionResetError

    relay = OutboxRelay(engine, {"t": Failing(RuntimeError())}, max_attempts=1, backoff=NO_WAIT)

    assert relay.relay_once().held == 3
    assert Outbox().parked(engine) == []


def test_a_target_that_is_away_is_given_a_rest(engine: Engine) -> None:
    add(engine, 1)
    asked: list[int] = []

    class Gone:
        def publish(self, letters: Sequence[Letter]) -> Any:
            asked.append(len(letters))
            raise ConnectionRefusedError

    relay = OutboxRelay(engine, {"t": Gone()}, backoff=Backoff(base_s=60.0, cap_s=60.0, jitter=0.0))

    assert [relay.relay_once().held for _ in range(2)] == [1, 0]

    assert asked == [1]


def test_a_target_that_holds_every_letter_is_not_asked_again_before_a_pause(engine: Engine) -> None:
    add(engine, 3)
    asked: list[int] = []

    class Full:
        def publish(self, letters: Sequence[Letter]) -> Any:
            asked.append(len(letters))
            return [(Outcome.HELD, "")] * len(letters)

    assert OutboxRelay(engine, {"t": Full()}).drain(timeout_s=5.0).held == 3

    assert asked == [3]


@pytest.mark.parametrize("answer", [None, [], [PUBLISHED] * 4, [Outcome.PUBLISHED] * 3, [True] * 3, "abc"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_target_that_does_not_answer_for_each_letter_is_named_and_nothing_is_deleted(
    engine: Engine,
    answer: Any,
    one_by_one: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    add(engine, 3)

    class Careless:
        def publish(self, letters: Sequence[Letter]) -> Any:
            if one_by_one and len(letters) > 1:
                raise RuntimeError
            return answer

    relay = OutboxRelay(engine, {"t": Careless()}, max_attempts=1, backoff=NO_WAIT)

    with pytest.raises(ConfigurationError, match=r"'t' must answer .* for each letter"):
        relay.relay_once()

    assert rows(engine, "conquiet_outbox") == 3
    assert Outbox().parked(engine) == []


def test_after_a_letter_that_a_stream_refuses_nothing_more_of_its_key_goes_out() -> None:
    keys = [b"a", None, b"a", b"b", None]
    sent: list[int] = []

    def send(index: int) -> None:
        if index < 2:
            raise PayloadError("not this one", reason="too large")
        sent.append(index)

    letters = [Letter(seq, str(seq), key, b"{}") for seq, key in enumerate(keys)]
    refused = (Outcome.REFUSED, "too large")

    assert one_by_one(letters, send) == [refused, refused, HELD, PUBLISHED, PUBLISHED]
    assert sent == [3, 4]


def test_batches_shrink_where_publishing_takes_long_and_grow_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("conquiet.bridge.relay.time", SimpleNamespace(monotonic=lambda: now[0]))
    sizes: list[int] = []
    seconds_each = [1.0]

    class Slow:
        def publish(self, letters: Sequence[Letter]) -> Any:
            sizes.append(len(letters))
            now[0] += seconds_each[0] * len(letters)
            return [(Outcome.PUBLISHED, "")] * len(letters)

    add(engine, 200)
    relay = OutboxRelay(engine, {"t": Slow()}, batch=64, backoff=NO_WAIT)
    relay.relay_once()
    relay.relay_once()
    seconds_each[0] = 0.01
    for _ in range(3):
        relay.relay_once()

    assert sizes == [64, 20, 40, 64, 12]


async def test_a_letter_that_cannot_be_sent_is_refused_and_does_not_hold_its_key_for_ever() -> None:
    target = ToRabbit("amqp://127.0.0.1:1", "q")
    answers: dict[int, object] = {1: None, 2: ValueError("4111"), 3: RabbitConnectionError("gone")}

    async def send(letter: Letter) -> object:
        answer = answers[letter.seq]
        if isinstance(answer, Exception):
            raise answer
        return "id"

    target._send = send  # type: ignore[assignment, method-assign]
    letters = [Letter(seq, str(seq), None, b"{}") for seq in answers]

    verdicts = await target._publish(letters)

    assert verdicts == [(Outcome.PUBLISHED, ""), (Outcome.REFUSED, "ValueError"), (Outcome.HELD, "")]
    with pytest.raises(RabbitConnectionError):
        await target._publish(letters[2:])
    await asyncio.to_thread(target.close)
