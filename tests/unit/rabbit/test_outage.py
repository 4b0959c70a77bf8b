"""A pause of consumption: nothing that was taken back is forgotten, and a probe always follows."""

from types import SimpleNamespace
from typing import Any

from conquiet.core.backoff import Backoff
from conquiet.rabbit.outage import SyncerPause
from conquiet.rabbit.syncer import Unavailable
from conquiet.testing import wait_until_async

AT_ONCE = Backoff(base_s=0.0, cap_s=0.0)
AWAY = Unavailable()


class Delivery:
    """The attributes of a delivery that an outage reads."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.session = SimpleNamespace(is_open=True, skip=lambda _: None)


def a_gate(unstarted: list[Any], submitted: list[Any]) -> SyncerPause:
    def recall() -> list[Any]:
        taken, unstarted[:] = list(unstarted), []
        return taken

    return SyncerPause("work", submitted.extend, recall, AT_ONCE)


async def test_deliveries_recalled_by_a_pause_run_after_it() -> None:
    running, *waiting = (Delivery(tag) for tag in range(1, 4))
    submitted: list[Any] = []
    outage: Any = a_gate(list(waiting), submitted)

    outage.interrupted(running, AWAY)
    await wait_until_async(lambda: submitted == [running])
    outage.finished(running)

    assert submitted == [running, *waiting]
    assert not outage.is_paused


async def test_a_probe_that_is_lost_with_its_link_is_followed_by_another() -> None:
    probe, other = Delivery(1), Delivery(2)
    submitted: list[Any] = []
    outage: Any = a_gate([other], submitted)
    outage.interrupted(probe, AWAY)
    await wait_until_async(lambda: submitted == [probe])

    probe.session.is_open = False
    outage.link_lost()

    await wait_until_async(lambda: submitted == [probe, other])
