"""The processor's own decisions without an engine and without a server: it is given its neighbours."""

import subprocess
import sys
from typing import Any

import pytest

from conquiet.errors import ConfigurationError, ConquietError
from conquiet.processor.delays import clock_difference
from conquiet.processor.envelope import Envelope, EnvelopeError, to_payload
from conquiet.processor.execution import Execution
from conquiet.processor.keys import keys_of
from conquiet.processor.policy import Reject, RetryPolicy
from conquiet.processor.records import decode_record, describe
from conquiet.processor.routes import Route
from conquiet.processor.settings import HandlerSettings, ProcessorSettings
from conquiet.queue.codec import encode_payload
from conquiet.runtime import RuntimeMessage
from conquiet.runtime.context import Leaving


class FakeSettler:
    """Remembers what it was asked to carry out."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def reschedule(self, keys: Any, entry_id: str, when: str, payload: bytes) -> bool:
        self.calls.append((when, payload))
        return True

    async def bury(self, keys: Any, entry_id: str, record: bytes) -> bool:
        self.calls.append(("dead", decode_record(record)))
        return True


class FakeDelivery:
    """The engine's side of a message, as far as the processor uses it."""

    def __init__(self, message: RuntimeMessage) -> None:
        self.message = message
        self.id = message.id
        self.stream = message.stream
        self.delivery_count = 1

    async def ack(self) -> None:
        self.message.acknowledged = True

    def leaving(self) -> Leaving:
        return Leaving(self.message)

    def mark_acknowledged(self) -> None:
        self.message.acknowledged = True


class NoPauses:
    def is_event_paused(self, stream: str, event: str) -> bool:
        return False


def execution_of(settler: FakeSettler, function: Any, retry: RetryPolicy | None = None) -> Execution:
    handler = HandlerSettings(event="pay", function=function, retry=retry or RetryPolicy())
    return Execution(
        None,  # type: ignore[arg-type]
        group="processor",
        consumer_id="me",
        routes={"pay": Route(handler, [], lambda: None)},  # type: ignore[arg-type, return-value]
        keys={"s": keys_of("s")},
        pauses=NoPauses(),  # type: ignore[arg-type]
        settler=settler,  # type: ignore[arg-type]
        emitter=None,  # type: ignore[arg-type]
        jobs=None,
        settings=ProcessorSettings(),
    )


async def run(payload: dict[str, Any], function: Any, retry: RetryPolicy | None = None) -> Any:
    settler = FakeSettler()
    execution = execution_of(settler, function, retry)
    message = RuntimeMessage("s", "1-1", payload, raw=encode_payload(payload, max_bytes=10**6))
    error: BaseException | None = None
    try:
        await execution(message, FakeDelivery(message))
    except Exception as raised:  # noqa: BLE001 - looked at below
        error = raised
    return message, settler.calls, error


@pytest.mark.spec("CM-006.5")
async def test_a_success_is_left_to_the_engine_to_acknowledge() -> None:
    async def works(ctx: Any) -> None:
        return

    message, calls, error = await run(to_payload(Envelope("pay", "m")), works)

    assert (message.acknowledged, calls, error) == (False, [], None)


@pytest.mark.spec("CM-006.5")
async def test_a_failure_is_settled_and_then_told_to_the_engine() -> None:
    async def fails(ctx: Any) -> None:
        raise LookupError

    message, calls, error = await run(to_payload(Envelope("pay", "m")), fails, RetryPolicy.fixed(1.5, max_attempts=2))

    assert message.acknowledged
    assert [call[0] for call in calls] == ["+1500"]
    assert b'"attempt":2' in calls[0][1]
    assert isinstance(error, LookupError)


async def test_what_is_not_ours_to_handle_never_reaches_the_handler() -> None:
    async def never(ctx: Any) -> None:
        raise AssertionError

    message, calls, error = await run({"plain": 1}, never)
    assert calls[0][1].reason == "not_an_envelope"
    assert isinstance(error, EnvelopeError)

    message, calls, error = await run(to_payload(Envelope("other", "m")), never)
    assert calls[0][1].reason == "unknown_event"
    assert isinstance(error, Reject)

    message, calls, error = await run(to_payload(Envelope("pay", "m", group="another")), never)
    assert (message.acknowledged, calls, error) == (False, [], None)

    message, calls, error = await run(to_payload(Envelope("pay", "m", delay_until_ms=2**45)), never)
    assert (message.acknowledged, error) == (True, None)
    assert calls[0][0] == f"={2**45}"


async def test_what_was_delivered_too_often_is_buried_whatever_is_wrong_with_it() -> None:
    settler = FakeSettler()
    message = RuntimeMessage("s", "1-1", None, raw=b'{"odd":1}')  # type: ignore[arg-type]  # nobody foresaw it

    await execution_of(settler, print).exhausted(message, FakeDelivery(message))

    ((_, record),) = settler.calls
    assert (record.reason, record.payload) == ("deliveries_exhausted", {"odd": 1})
    assert message.acknowledged


async def test_another_groups_retry_is_no_dead_letter_of_ours_however_often_it_was_delivered() -> None:
    """Replayed, it would be run by us, who have dealt with it."""
    settler = FakeSettler()
    payload = to_payload(Envelope("pay", "m", group="another"))
    message = RuntimeMessage("s", "1-1", payload, raw=encode_payload(payload, max_bytes=10**6))

    await execution_of(settler, print).exhausted(message, FakeDelivery(message))

    assert (message.acknowledged, settler.calls) == (True, [])


async def test_an_exception_that_cannot_be_told_is_settled_like_any_other() -> None:
    class UntoldError(ConquietError):
        def __str__(self) -> str:
            raise LookupError

    async def fails(ctx: Any) -> None:
        raise UntoldError

    message, ((_, record),), _ = await run(to_payload(Envelope("pay", "m")), fails)

    assert message.acknowledged
    assert (record.error_type.endswith("UntoldError"), record.error) == (
        True,
        "its text cannot be told: str() of it fails",
    )


@pytest.mark.spec("CM-006.5")
def test_the_engine_can_be_imported_without_the_processor_and_the_processor_without_a_database() -> None:
    code = (
        "import sys, conquiet.runtime\n"
        "assert not [name for name in sys.modules if name.startswith('conquiet.processor')]\n"
        "import conquiet.processor\n"
        "print([name for name in ('sqlalchemy', 'pymysql', 'pika', 'conquiet.db') if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert result.stdout.strip() == "[]", result.stderr


def test_a_missing_client_library_is_named_with_its_extra() -> None:
    code = "import sys; sys.modules['redis'] = None; import conquiet.processor"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "conquiet[redis]" in result.stderr


def test_a_long_chain_of_causes_and_a_recursive_one_are_told_briefly() -> None:
    first = ValueError("DE02")
    first.__context__ = first
    told = describe(first, store_text=False)
    assert told is not None
    assert told.type == "ValueError"
    assert "DE02" not in told.traceback

    deep: Exception = ValueError()
    for _ in range(50):
        outer = RuntimeError()
        outer.__cause__ = deep
        deep = outer
    told = describe(deep, store_text=True)
    assert told is not None
    assert told.traceback.count("caused by") == 4
    assert describe(None, store_text=True) is None


@pytest.mark.parametrize(
    ("server", "asked", "answered", "ahead"),
    [(1000, 1000.4, 1001.0, 0), (1005, 1000.0, 1010.0, 0), (6000, 1000.0, 1010.0, 4995), (500, 1000.0, 1010.0, -505)],
)
def test_clocks_that_may_agree_are_taken_to(server: int, asked: float, answered: float, ahead: int) -> None:
    assert clock_difference(server, asked, answered) == ahead


@pytest.mark.parametrize(
    "options",
    [
        {"retry": 3},
        {"settle_backoff": 3},
        {"dedupe_window_s": 0},
        {"chunk_size": 0},
        {"dead_letters_max": 0},
        {"dead_letters_max_age_s": -1},
        {"job_ttl_s": 0},
        {"refresh_s": 0},
        {"settle_attempts": 0},
        {"max_payload_bytes": True},
    ],
)
def test_settings_are_refused_not_repaired(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ProcessorSettings(**options)


@pytest.mark.parametrize(
    "options",
    [{"event": "*"}, {"function": 3}, {"retry": None}, {"timeout_s": 0}, {"concurrency": 0}, {"rate": 5}],
)
def test_a_handler_is_refused_when_it_is_registered_wrongly(options: dict[str, Any]) -> None:
    good: dict[str, Any] = {"event": "pay", "function": print, "retry": RetryPolicy()}

    with pytest.raises(ConfigurationError):
        HandlerSettings(**good | options)
