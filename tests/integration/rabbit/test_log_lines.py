"""The log line of a message that was not processed: the attempt, the disposition, the line that raised."""

from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.errors import FatalSyncerError
from conquiet.rabbit import RabbitConsumer

CANARY = "jane@example.org"


def unprocessed(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.name == "conquiet.rabbit.dispatcher"]
    assert CANARY not in str([vars(record) for record in found])
    return [f"{record.levelname} {record.getMessage()}" for record in found]


async def test_each_failed_attempt_is_counted_and_the_last_names_the_target(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1, mail=CANARY))
    syncer = recorder(*[False] * 2)
    consumer = RabbitConsumer(rabbit.url, queue, syncer)
    syncer.consumer, syncer.stop_after = consumer, 2
    await consumer.run()

    first, last = unprocessed(caplog)
    assert "not processed, attempt 1 of 2, returned to the queue for another attempt: refused" in first
    assert first.startswith("WARNING message ")
    assert "not processed, attempt 2 of 2, " in last
    assert last.startswith("ERROR message ")
    assert "dead-lettered" in last or "moved to" in last


async def test_a_syncer_that_raises_is_named_by_its_line(
    rabbit: Rabbit, action: MakeAction, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1, mail=CANARY))

    async def charge(message: dict[str, Any]) -> bool:
        raise KeyError(CANARY)

    with pytest.raises(FatalSyncerError):
        await RabbitConsumer(rabbit.url, queue, charge).run()

    (line,) = unprocessed(caplog)
    assert line.startswith("ERROR fatal error, the consumer stops: KeyError at ")
    assert "test_log_lines.py:" in line
    assert " in charge" in line


@pytest.mark.parametrize("log_tracebacks", [False, True])
async def test_the_whole_traceback_of_a_syncer_needs_to_be_asked_for(
    rabbit: Rabbit,
    action: MakeAction,
    caplog: pytest.LogCaptureFixture,
    log_tracebacks: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, action(1))

    async def charge(message: dict[str, Any]) -> bool:
        raise KeyError("a text that may quote the message")

    with pytest.raises(FatalSyncerError):
        await RabbitConsumer(rabbit.url, queue, charge, log_tracebacks=log_tracebacks).run()

    assert ("a text that may quote the message" in caplog.text) is log_tracebacks
