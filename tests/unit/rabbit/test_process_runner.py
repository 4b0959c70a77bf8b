"""Signals and stops of ``sync_queue`` without a broker."""

import os
import signal
from typing import Any

import pytest

from conquiet.errors import FatalSyncerError, LifecycleError
from conquiet.rabbit import RabbitConsumer, process_runner, run_process, sync_queue
from conquiet.signals import TerminationHandlers

NOWHERE = "amqp://127.0.0.1:1"


def never(_: Any) -> bool:
    raise AssertionError


def test_a_signal_in_the_moment_of_the_start_is_a_good_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = process_runner._run

    async def interrupted(consumer: RabbitConsumer, handlers: TerminationHandlers) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return await run(consumer, handlers)

    monkeypatch.setattr(process_runner, "_run", interrupted)

    assert sync_queue(NOWHERE, "q", never).ack == 0


@pytest.mark.parametrize("options", [{}, {"concurrency": 0}])
def test_a_process_that_never_consumed_ends_with_exit_code_2(options: Any) -> None:
    assert run_process(NOWHERE, "q", never, **options) == 2


def test_a_fatal_syncer_error_at_the_start_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message may arrive with the broker's reply, before the connection is announced."""

    async def broken(_consumer: RabbitConsumer, _handlers: TerminationHandlers) -> Any:
        raise FatalSyncerError("the syncer returned None")

    monkeypatch.setattr(process_runner, "_run", broken)

    assert run_process(NOWHERE, "q", never) == 1


def test_a_stop_without_a_signal_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    run = process_runner._run

    async def stopped(consumer: RabbitConsumer, handlers: TerminationHandlers) -> Any:
        consumer.stop()
        return await run(consumer, handlers)

    monkeypatch.setattr(process_runner, "_run", stopped)

    with pytest.raises(LifecycleError):
        sync_queue(NOWHERE, "q", never)
