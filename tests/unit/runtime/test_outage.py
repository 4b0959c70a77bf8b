"""The pause during an outage, without a server."""

from conquiet.core.backoff import Backoff
from conquiet.errors import DatabaseUnavailableError
from conquiet.runtime.outage import OutagePause
from conquiet.testing import wait_until_async

AWAY = DatabaseUnavailableError("away")
LATER = float("inf")


def an_outage(woken: list[int]) -> OutagePause:
    return OutagePause("billing", Backoff(base_s=0.01, cap_s=0.05, jitter=0.0), on_change=lambda: woken.append(1))


async def test_a_message_older_than_the_fault_does_not_change_the_pause() -> None:
    outage = an_outage([])

    outage.record_fault(AWAY, started_at=LATER)
    outage.record_fault(AWAY, started_at=0.0)
    outage.record_result(started_at=0.0)

    assert (outage.is_on, outage.is_paused, outage.limit(10)) == (True, True, 0)
    outage.close()


async def test_without_a_result_consumption_continues_after_the_longest_pause() -> None:
    """A handler of an hour must not keep the others from running, nor an idle stream the engine from being ready."""
    woken: list[int] = []
    outage = an_outage(woken)

    outage.record_fault(AWAY, started_at=LATER)
    await wait_until_async(lambda: outage.limit(10) == 1)
    outage.record_fetch()
    limit_with_probe = outage.limit(10)
    await wait_until_async(lambda: not outage.is_on)

    assert limit_with_probe == 0
    assert (outage.limit(10), len(woken)) == (10, 2)


async def test_any_other_result_of_the_probe_ends_the_pause() -> None:
    outage = an_outage([])

    outage.record_fault(AWAY, started_at=1.0)
    outage.record_result(started_at=LATER)

    assert (outage.is_on, outage.is_paused, outage.limit(10)) == (False, False, 10)
