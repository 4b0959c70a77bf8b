"""The pool of an engine with batch handlers: when a batch starts."""

from collections.abc import Sequence

import pytest
from tests.unit.core.clocked_loop import ClockedLoop

from conquiet.core.batching import BatchSettings
from conquiet.core.settlement import Settlement
from conquiet.runtime.batch import Batch, BatchPool, Item
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import RuntimeMessage

TOOK_S = 0.006


class OneHandler:
    """Gathers all messages, for 20 ms."""

    largest = 200

    def find(self, message: RuntimeMessage) -> tuple[str, BatchSettings]:
        return "paid", BatchSettings(200, 0.02)

    async def execute_batch(
        self, key: str, messages: Sequence[RuntimeMessage], leases: LeaseManager
    ) -> Sequence[Settlement]:
        raise NotImplementedError  # the pool does not call it


def test_a_message_has_its_effect_within_the_time_of_its_batch() -> None:
    """From the second batch on: how long the handler takes is not known before."""
    loop = ClockedLoop()
    latencies: list[float] = []
    arrived: dict[str, float] = {}

    async def work(item: Item) -> None:
        assert isinstance(item, Batch)
        loop.now += TOOK_S  # until its COMMIT
        latencies.extend(loop.now - arrived[message.id] for message in item.messages)

    async def arrive_and_wait() -> None:
        pool = BatchPool(1, work, work, batching=OneHandler(), cap=None, on_free=lambda: None)
        pool.start()
        for number in range(3):
            message = RuntimeMessage("orders", f"{number}-0", {})
            arrived[message.id] = loop.now
            pool.put([message])
            while len(latencies) == number:
                await loop.pass_time(0.0005)
        await pool.close()

    try:
        loop.run_until_complete(arrive_and_wait())
    finally:
        loop.close()

    assert latencies == [
        pytest.approx(0.02 + TOOK_S, abs=0.001),
        pytest.approx(0.02, abs=0.001),
        pytest.approx(0.02, abs=0.001),
    ]


@pytest.mark.parametrize("cap", [1, 3])
def test_only_a_message_past_the_delivery_cap_is_kept_out_of_batches(cap: int) -> None:
    """Past it no handler may see the message. On its last delivery it is gathered like any other."""
    loop = ClockedLoop()
    worked: list[Item] = []

    async def work(item: Item) -> None:
        worked.append(item)

    async def arrive_and_wait() -> None:
        pool = BatchPool(2, work, work, batching=OneHandler(), cap=cap, on_free=lambda: None)
        pool.start()
        counts = (1, cap, cap + 1)
        pool.put([RuntimeMessage("orders", f"{at}-0", {}, delivery_count=n) for at, n in enumerate(counts)])
        while sum(len(one.messages) if isinstance(one, Batch) else 1 for one in worked) < len(counts):
            await loop.pass_time(0.0005)
        await pool.close()

    try:
        loop.run_until_complete(arrive_and_wait())
    finally:
        loop.close()

    gathered = [message for one in worked if isinstance(one, Batch) for message in one.messages]
    (alone,) = [one for one in worked if isinstance(one, RuntimeMessage)]
    assert sorted(message.delivery_count for message in gathered) == [1, cap]
    assert alone.delivery_count == cap + 1
