"""A cancellation that a library swallows is raised."""

import asyncio

import pytest

from conquiet.core.task_cancellation import cancel_from_any_thread, forget_cancellations, reraise_swallowed_cancellation


async def test_a_swallowed_cancellation_is_raised_at_the_end() -> None:
    went_on: list[str] = []

    async def call() -> None:
        with reraise_swallowed_cancellation():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                went_on.append("inside")  # as asyncio.wait_for does up to Python 3.11
        went_on.append("behind")

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert went_on == ["inside"]


async def test_calls_are_possible_during_the_clean_up_after_a_cancellation() -> None:
    cleaned_up: list[int] = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with reraise_swallowed_cancellation():
                await asyncio.sleep(0)
            cleaned_up.append(1)
            raise

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert cleaned_up == [1]


async def test_every_request_of_several_is_called_off() -> None:
    """A slot that lives on after two cancellations of its message must not carry one of them into the next."""

    async def asked_twice() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        forget_cancellations(task)
        return task.cancelling()

    assert await asyncio.create_task(asked_twice()) == 0


async def test_a_task_is_cancelled_from_another_thread() -> None:
    task = asyncio.create_task(asyncio.Event().wait())

    await asyncio.to_thread(cancel_from_any_thread, task)
    await asyncio.wait({task})

    assert task.cancelled()


def test_cancelling_a_task_of_a_closed_loop_has_no_effect() -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(task)
    loop.close()

    cancel_from_any_thread(task)
    cancel_from_any_thread(None)

    assert not task.cancelled()
