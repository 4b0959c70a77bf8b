"""The processor's own decisions without an engine and without a server: it is given its neighbours."""

import subprocess
import sys
from typing import Any

import pytest

from conquiet.core.functions import mark_cancellation
from conquiet.core.json_codec import encode_payload
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, Defer, KeepPending, Release, RetryLater, Settlement
from conquiet.errors import ConfigurationError, ConquietError, InfrastructureError, MessageInProgressError
from conquiet.processor.admission import Admission
from conquiet.processor.attempt_recorder import AttemptRecorder
from conquiet.processor.cancellation import JobCanceller
from conquiet.processor.dead_letter_record import decode_record, describe
from conquiet.processor.delayed import clock_difference
from conquiet.processor.envelope import Envelope, EnvelopeError, to_payload
from conquiet.processor.envelope_decoder import EnvelopeDecoder
from conquiet.processor.execution import Execution
from conquiet.processor.foreign import ForeignGuard
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.ordering import NO_TURN
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import Reject, RetryPolicy
from conquiet.processor.results import ResultWriter
from conquiet.processor.settings import HandlerSettings, ProcessorSettings
from conquiet.processor.settler import ProcessorSettler, Step
from conquiet.processor.unknown_events import UnknownEvents
from conquiet.runtime import RuntimeMessage


class Leases:
    """The engine's side of a message, as far as the processor uses it."""

    claim_idle_s = 30.0
    group = "processor"

    async def acknowledge(self, message: RuntimeMessage) -> None:
        message.mark_acknowledged()

    async def extend(self, message: RuntimeMessage) -> bool:
        return True


class NoPauses:
    exist = False

    def is_event_paused(self, stream: str, event: str) -> bool:
        return False


def the_parts(**settings: Any) -> ProcessorParts:
    """Return the shared parts, without a server."""
    return ProcessorParts(
        client=None,  # type: ignore[arg-type]
        group="processor",
        consumer_id="me",
        keys={"s": keys_of("s")},
        settings=ProcessorSettings(**settings),
        jobs=None,
        pauses=NoPauses(),  # type: ignore[arg-type]
    )


class Written(ProcessorSettler):
    """Records the settlements that it should store."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(the_parts(**settings))
        self.calls: list[tuple[str, Any]] = []

    async def reschedule(
        self, keys: Keys, entry_id: str, when: str, payload: bytes, turn: tuple[str, str] = NO_TURN
    ) -> Step:
        self.calls.append((when, payload))
        return Step.MOVED

    async def dead_letter(self, keys: Keys, entry_id: str, record: bytes, turn: tuple[str, str] = NO_TURN) -> Step:
        self.calls.append(("dead", decode_record(record)))
        return Step.MOVED


def execution_of(
    function: Any, retry: RetryPolicy | None = None, settler: ProcessorSettler | None = None, **settings: Any
) -> Execution:
    handler = HandlerSettings(event="pay", function=function, retry=retry or RetryPolicy())
    runners = {"pay": HandlerRunner(handler, [], emitter=None, threads=lambda: None)}  # type: ignore[arg-type, return-value]
    parts = the_parts(**settings)
    results = ResultWriter(None, max_bytes=1_000)  # type: ignore[arg-type]
    canceller = JobCanceller(parts, runners, results=results)
    return Execution(
        runners=runners,
        decoder=EnvelopeDecoder("processor", ForeignGuard(None, None, None)),  # type: ignore[arg-type]
        admission=Admission(
            parts,
            canceller=canceller,
            settler=settler,  # type: ignore[arg-type]
            unknown=UnknownEvents(parts, runners),
        ),
        attempts=AttemptRecorder(parts, results=results, canceller=canceller),
        settler=settler,  # type: ignore[arg-type]
        canceller=canceller,
        batching=None,
    )


def a_message(payload: dict[str, Any]) -> RuntimeMessage:
    return RuntimeMessage("s", "1-1", payload, raw=encode_payload(payload, max_bytes=10**6))


async def decided(message: RuntimeMessage, function: Any, retry: RetryPolicy | None = None, **settings: Any) -> Any:
    begun = execution_of(function, retry, **settings).execute(message, Leases())
    return begun if isinstance(begun, Settlement) else await begun


async def never(ctx: Any) -> None:
    raise AssertionError


@pytest.mark.spec("CM-006.5")
async def test_a_success_is_acknowledged_by_the_engine() -> None:
    async def works(ctx: Any) -> None:
        return

    message = a_message(to_payload(Envelope("pay", "m")))

    assert await decided(message, works) is ACKNOWLEDGE
    assert not message.acknowledged


@pytest.mark.spec("CM-006.5")
async def test_a_failure_is_returned_and_not_raised() -> None:
    failure = LookupError()

    async def fails(ctx: Any) -> None:
        raise failure

    message = a_message(to_payload(Envelope("pay", "m")))

    assert await decided(message, fails, RetryPolicy.fixed(1.5, max_attempts=2)) == RetryLater(
        1500, failure, max_attempts=2
    )
    assert await decided(message, fails) == DeadLetter("attempts_exhausted", failure, max_attempts=1)


async def test_a_message_that_is_not_ours_never_reaches_the_handler() -> None:
    settlement = await decided(a_message({"plain": 1}), never)
    assert (settlement.reason, type(settlement.failure)) == ("not_an_envelope", EnvelopeError)

    settlement = await decided(a_message(to_payload(Envelope("other", "m"))), never, unknown_grace_s=0)
    assert (settlement.reason, type(settlement.failure)) == ("unknown_event", Reject)

    assert await decided(a_message(to_payload(Envelope("pay", "m", group="another"))), never) is ACKNOWLEDGE
    later = a_message(to_payload(Envelope("pay", "m", delay_until_ms=2**45)))
    assert await decided(later, never) == Defer(until_ms=2**45)


@pytest.mark.parametrize(
    ("failure", "settlement"), [(InfrastructureError("away"), Release), (MessageInProgressError("busy"), KeepPending)]
)
async def test_a_fault_that_is_not_the_messages_charges_no_attempt(failure: Exception, settlement: type) -> None:
    async def fails(ctx: Any) -> None:
        raise failure

    result = await decided(a_message(to_payload(Envelope("pay", "m"))), fails, RetryPolicy.fixed(1, max_attempts=5))

    assert (type(result), result.failure) == (settlement, failure)


async def test_a_failure_after_an_early_acknowledgement_is_final() -> None:
    async def fails(ctx: Any) -> None:
        await ctx.ack()
        raise LookupError

    result = await decided(a_message(to_payload(Envelope("pay", "m"))), fails, RetryPolicy.fixed(1, max_attempts=5))

    assert isinstance(result, KeepPending)


async def test_too_many_deliveries_come_before_any_other_fault() -> None:
    settler = Written()
    message = RuntimeMessage("s", "1-1", None, raw=b'{"odd":1}')  # type: ignore[arg-type]  # not foreseen
    execution = execution_of(print, settler=settler)

    settlement = execution.exhausted(message, Leases())
    assert isinstance(settlement, DeadLetter)
    assert await execution.store(message, settlement, Leases()) is None

    ((_, record),) = settler.calls
    assert (record.reason, record.payload) == ("deliveries_exhausted", {"odd": 1})


async def test_another_groups_retry_is_no_dead_letter_of_ours() -> None:
    """Replayed, it would be run by our group, which has dealt with it."""
    message = a_message(to_payload(Envelope("pay", "m", group="another")))

    assert execution_of(print).exhausted(message, Leases()) is ACKNOWLEDGE


async def test_a_retry_is_stored_as_the_next_attempt() -> None:
    settler = Written()
    message = a_message(to_payload(Envelope("pay", "m")))
    message.decoded = Envelope("pay", "m")

    await settler.settle(message, RetryLater(1500, LookupError()))
    await settler.settle(message, Defer(unknown_since_ms=7))

    (when, payload), (deferred_when, deferred) = settler.calls
    assert (when, deferred_when) == ("+1500", "+0")
    assert b'"attempt":2' in payload
    assert b'"attempt":1' in deferred
    assert b'"unknown_since_ms":7' in deferred


@pytest.mark.parametrize(
    ("failure", "settlement"), [(InfrastructureError("away"), Release), (MessageInProgressError("busy"), KeepPending)]
)
async def test_a_job_that_cannot_be_cancelled_now_is_settled_as_a_value(failure: Exception, settlement: type) -> None:
    """If it were raised, it would count as a failed server: the message would not be released, and no pause begin."""

    class Requested(Written):
        async def reschedule(self, *_: Any, **__: Any) -> Step:
            return Step.TO_CANCEL

    async def cancel(ctx: Any) -> bool:
        raise failure

    async def pay(ctx: Any) -> None:
        return

    mark_cancellation(pay, cancel)
    message = a_message(to_payload(Envelope("pay", "m")))
    message.decoded = Envelope("pay", "m")

    result = await execution_of(pay, settler=Requested()).store(message, RetryLater(0, LookupError()), Leases())

    assert result is not None
    assert (type(result), result.failure) == (settlement, failure)


async def test_an_exception_without_a_text_is_stored_like_any_other() -> None:
    class UnprintableError(ConquietError):
        def __str__(self) -> str:
            raise LookupError

    settler = Written()
    message = a_message(to_payload(Envelope("pay", "m")))

    await settler.settle(message, DeadLetter("attempts_exhausted", UnprintableError()))

    ((_, record),) = settler.calls
    assert (record.error_type.endswith("UnprintableError"), record.error) == (True, "<unprintable exception>")


@pytest.mark.spec("CM-006.5")
def test_the_engine_imports_no_processor_and_the_processor_no_database() -> None:
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


def test_long_and_recursive_chains_of_causes_are_recorded_briefly() -> None:
    first = ValueError("DE02")
    first.__context__ = first
    reported = describe(first, store_text=False)
    assert reported is not None
    assert reported.type == "ValueError"
    assert "DE02" not in reported.traceback

    deep: Exception = ValueError()
    for _ in range(50):
        outer = RuntimeError()
        outer.__cause__ = deep
        deep = outer
    reported = describe(deep, store_text=True)
    assert reported is not None
    assert reported.traceback.count("caused by") == 4
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
