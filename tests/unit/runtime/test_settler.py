"""Settlements, carried out in one place."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from conquiet.core.backoff import Backoff
from conquiet.core.settlement import ACKNOWLEDGE, MOVED, DeadLetter, KeepPending, Release, RetryLater, Settlement, Stop
from conquiet.errors import InfrastructureError, QueueError
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.message import Ownership, RuntimeMessage
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.settler import Settler


class Stage:
    """A settler with everything that it calls."""

    def __init__(self, instead: Settlement | None = None) -> None:
        self.instead = instead
        self.stored: list[Settlement] = []
        self.released: list[RuntimeMessage] = []
        self.stopped_with: list[BaseException] = []
        self.acknowledged: list[RuntimeMessage] = []
        self.table = LeaseTable(["s"])
        self.outage = OutagePause("g", Backoff(base_s=60.0, cap_s=60.0), on_change=lambda: None)
        self.acknowledge_soon = self.acknowledged.append
        parts = SimpleNamespace(executor=self, table=self.table, outage=self.outage, stop=self.stopped_with.append)
        self.settler = Settler(cast("Any", parts), cast("Any", self))
        self.message = RuntimeMessage("s", "1-0", {}, started_at=1.0)
        self.table.add([self.message])

    async def store(self, message: RuntimeMessage, settlement: Settlement, leases: object) -> Settlement | None:
        self.stored.append(settlement)
        return self.instead

    async def release(self, messages: list[RuntimeMessage]) -> int:
        self.released += messages
        return len(messages)

    @property
    def is_leased(self) -> bool:
        return bool(self.table.snapshot())


async def test_a_moved_message_is_marked_acknowledged_and_no_longer_leased() -> None:
    stage = Stage()

    assert await stage.settler.settle(stage.message, MOVED) is MOVED

    assert (stage.message.ownership, stage.is_leased) == (Ownership.ACKNOWLEDGED, False)


async def test_a_stored_message_is_marked_acknowledged_and_no_longer_leased() -> None:
    stage, settlement = Stage(), DeadLetter("rejected")

    assert await stage.settler.settle(stage.message, settlement) is settlement

    assert (stage.message.ownership, stage.is_leased) == (Ownership.ACKNOWLEDGED, False)


async def test_a_release_in_place_of_a_retry_releases_the_message_and_pauses() -> None:
    fault = InfrastructureError("the database is away")
    stage = Stage(instead=Release(fault))

    carried_out = await stage.settler.settle(stage.message, RetryLater(0, LookupError()))
    stage.outage.close()

    assert carried_out == Release(fault)
    assert (stage.released, stage.outage.is_paused, stage.is_leased) == ([stage.message], True, False)
    assert not stage.message.acknowledged


@pytest.mark.parametrize(
    ("instead", "ownership"), [(MOVED, Ownership.ACKNOWLEDGED), (KeepPending(LookupError()), Ownership.HELD)]
)
async def test_a_settlement_that_replaces_a_retry_is_carried_out(instead: Settlement, ownership: Ownership) -> None:
    stage = Stage(instead)

    assert await stage.settler.settle(stage.message, RetryLater(0)) is instead

    assert (stage.message.ownership, stage.is_leased, stage.released) == (ownership, False, [])


async def test_a_stop_releases_the_message_and_ends_the_engine() -> None:
    stage, error = Stage(), QueueError("not our stream")

    await stage.settler.settle(stage.message, Stop(error))

    assert (stage.released, stage.stopped_with, stage.outage.is_on) == ([stage.message], [error], False)


async def test_an_acknowledged_message_is_not_stored_again() -> None:
    stage = Stage()
    stage.message.mark_acknowledged()

    await stage.settler.settle(stage.message, RetryLater(0))
    await stage.settler.settle(stage.message, ACKNOWLEDGE)

    assert (stage.stored, stage.acknowledged, stage.is_leased) == ([], [], False)
