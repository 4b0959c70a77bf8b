"""Effects of many messages in one transaction, on SQLite: by Engine and sessionmaker, plain and asynchronous."""

import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from conquiet.db import DbSession
from conquiet.errors import LeaseLostError
from conquiet.queue.models import QueueMessage
from conquiet.transactional import Inbox
from conquiet.transactional.batch_source import Batches as TransactionBatches
from conquiet.transactional.session_source import source_of

MESSAGES = [QueueMessage("orders", "shop", f"{number}-0", {"n": number}) for number in range(4)]
KINDS = ("engine", "sessionmaker", "async engine", "async sessionmaker")
INSERT = text("INSERT INTO effects (n) VALUES (:n)")


@pytest_asyncio.fixture
async def async_engine(engine: Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    yield made
    await made.dispose()


class Batches:
    """Batches of one kind of source; handlers write the number of each message."""

    def __init__(self, engine: Engine, async_engine: AsyncEngine, kind: str) -> None:
        self._engine = engine
        self._is_async = kind.startswith("async")
        sources: dict[str, Callable[[], Any]] = {
            "engine": lambda: engine,
            "sessionmaker": lambda: sessionmaker(engine),
            "async engine": lambda: async_engine,
            "async sessionmaker": lambda: async_sessionmaker(async_engine),
        }
        self._source = source_of(sources[kind]())
        self._batches = TransactionBatches(self._source, Inbox())
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE effects (n INTEGER PRIMARY KEY)")

    async def run(self, how: str, check: Callable[[], None] = lambda: None, *, failing: int | None = None) -> Any:
        async def write_async(session: Any, at: Any) -> None:
            for position in at if isinstance(at, list) else [at]:
                await session.execute(INSERT, {"n": position})
                if position == failing:
                    raise KeyError(position)

        def write(session: Any, at: Any) -> None:
            for position in at if isinstance(at, list) else [at]:
                (session.connection if isinstance(session, DbSession) else session).execute(INSERT, {"n": position})
                if position == failing:
                    raise KeyError(position)

        handler: Any = write_async if self._is_async else write
        call = self._source.entry_point(getattr(self._batches, how))
        result = call(MESSAGES, partial(self._source.call, handler), check)
        return await result if self._is_async else result

    def stored(self) -> tuple[list[int], list[str]]:
        """Return the effects, and the ids in the inbox."""
        with self._engine.connect() as connection:
            effects = connection.exec_driver_sql("SELECT n FROM effects ORDER BY n").scalars().all()
            ids = (
                connection.exec_driver_sql("SELECT message_id FROM conquiet_inbox ORDER BY message_id").scalars().all()
            )
        return list(effects), [one.decode() for one in ids]


@pytest.fixture(params=KINDS)
def batches(engine: Engine, async_engine: AsyncEngine, request: pytest.FixtureRequest) -> Batches:
    return Batches(engine, async_engine, request.param)


ALL = ([0, 1, 2, 3], ["0-0", "1-0", "2-0", "3-0"])


@pytest.mark.parametrize("how", ["run_batch", "run_each"])
async def test_a_lease_lost_before_commit_leaves_nothing_behind(batches: Batches, how: str) -> None:
    """Another worker has the messages: its effects and ours would be two."""
    checked: list[tuple[list[int], list[str]]] = []

    def lost() -> None:
        checked.append(batches.stored())
        raise LeaseLostError("claimed by another worker")

    with pytest.raises(LeaseLostError):
        await batches.run(how, lost)

    assert checked == [([], [])], "asked once, and before COMMIT"
    assert batches.stored() == ([], [])
    await batches.run(how)
    assert batches.stored() == ALL


async def test_of_each_one_that_fails_leaves_no_effect_and_no_inbox_row(batches: Batches) -> None:
    """If its row stayed, its next attempt would count as a duplicate: a silent loss."""
    outcomes = await batches.run("run_each", failing=2)

    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), KeyError, type(None)]
    assert batches.stored() == ([0, 1, 3], ["0-0", "1-0", "3-0"])
    assert await batches.run("run_each") == [None] * 4
    assert batches.stored() == ALL


async def test_in_a_batch_the_one_that_fails_is_found_and_leaves_nothing(batches: Batches) -> None:
    outcomes = await batches.run("run_batch", failing=2)

    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), KeyError, type(None)]
    assert batches.stored() == ([0, 1, 3], ["0-0", "1-0", "3-0"])
    assert await batches.run("run_batch") is None
    assert batches.stored() == ALL


async def test_a_lease_lost_while_the_failing_one_is_searched_leaves_nothing_behind(batches: Batches) -> None:
    def lost() -> None:
        raise LeaseLostError("claimed by another worker")

    with pytest.raises(LeaseLostError):
        await batches.run("run_batch", lost, failing=2)

    assert batches.stored() == ([], [])


@pytest.mark.parametrize("how", ["run_batch", "run_each"])
async def test_a_message_that_had_its_effect_is_not_run_again(batches: Batches, how: str) -> None:
    await batches.run(how)
    await batches.run(how)  # a second row of any would be an error

    assert batches.stored() == ALL


@pytest.mark.parametrize("failing", [0, 1])
def test_of_two_messages_with_one_key_only_the_failed_is_forgotten(engine: Engine, failing: int) -> None:
    """The key and the payload identify a message here. The other one had its effect a second time."""
    messages = [QueueMessage("orders", "shop", f"{number}-0", {"n": number}) for number in range(2)]
    source: Any = source_of(engine)
    run = source.entry_point(TransactionBatches(source, Inbox(key=lambda _: "order-7", compare_payload=True)).run_each)
    effects: list[int] = []
    fails = {failing}

    def deliver(*numbers: int) -> None:
        def handler(_: DbSession, position: int) -> None:
            if numbers[position] in fails:
                raise KeyError
            effects.append(numbers[position])

        run([messages[number] for number in numbers], partial(source.call, handler), lambda: None)

    deliver(0, 1)
    deliver(1 - failing)
    assert effects == [1 - failing]
    fails.clear()
    deliver(0, 1)
    deliver(failing)
    assert effects == [1 - failing, failing]


def test_a_message_that_fails_in_a_batch_is_not_counted(engine: Engine) -> None:
    messages = [QueueMessage("counted-batch", "shop", f"{number}-0", {}) for number in range(4)]
    source: Any = source_of(engine)
    fails = {2}

    def handler(_: DbSession, position: int) -> None:
        if position in fails:
            raise KeyError

    run = source.entry_point(TransactionBatches(source, Inbox()).run_each)
    run(messages, partial(source.call, handler), lambda: None)
    fails.clear()
    run(messages, partial(source.call, handler), lambda: None)

    labels = {"source": "counted-batch", "outcome": "first"}
    assert REGISTRY.get_sample_value("conquiet_inbox_messages_total", labels) == 4


@pytest.mark.parametrize("seed", range(40))
def test_in_any_batch_with_reused_keys_each_message_has_its_effect_once(engine: Engine, seed: int) -> None:
    """Keys and payloads repeat, some messages fail, and then all are delivered again, one by one."""
    chosen = random.Random(seed)
    source_name = f"reused-{seed}"
    batch = [
        QueueMessage(
            source_name, chosen.choice("gh"), f"{number}-0", {"id": chosen.choice("12"), "n": chosen.choice("ab")}
        )
        for number in range(chosen.randint(2, 7))
    ]
    fails = {number for number in range(len(batch)) if chosen.random() < 0.4}
    source: Any = source_of(engine)
    batches = TransactionBatches(source, Inbox(key=lambda msg: str(msg.payload["id"]), compare_payload=True))
    with DbSession(engine) as session:
        session.execute("CREATE TABLE done (what VARCHAR(9))")

    def effects() -> list[str]:
        with DbSession(engine) as session:
            return sorted(row["what"] for row in session.fetch_all("SELECT what FROM done"))

    def deliver(*numbers: int) -> None:
        def handler(session: DbSession, position: int) -> None:
            msg = batch[numbers[position]]
            session.execute(
                "INSERT INTO done VALUES (:what)", {"what": f"{msg.group}{msg.payload['id']}{msg.payload['n']}"}
            )
            if numbers[position] in fails:
                raise KeyError

        run = source.entry_point(batches.run_each)
        run([batch[number] for number in numbers], partial(source.call, handler), lambda: None)

    deliver(*range(len(batch)))
    labels = [{"source": source_name, "outcome": outcome} for outcome in ("first", "reused_id")]
    counted = sum(REGISTRY.get_sample_value("conquiet_inbox_messages_total", one) or 0 for one in labels)
    assert counted == len(effects())
    fails.clear()
    for number in chosen.sample(range(len(batch)), len(batch)):
        deliver(number)

    assert effects() == sorted({f"{msg.group}{msg.payload['id']}{msg.payload['n']}" for msg in batch})
