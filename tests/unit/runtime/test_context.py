"""Facts of a context that need no server."""

import pytest
from tests.unit.runtime.messages import a_message

from conquiet.errors import LeaseLostError
from conquiet.runtime.context import MessageContext
from conquiet.runtime.message import RuntimeMessage


class Leases:
    claim_idle_s = 30.0
    group = "g"

    async def acknowledge(self, message: RuntimeMessage) -> None:
        message.mark_acknowledged()

    async def extend(self, message: RuntimeMessage) -> bool:
        return False


async def test_a_commit_needs_a_lease_that_was_extended_in_time() -> None:
    """After a long pause of the process the loss is not known yet, and a commit would still be wrong."""
    stale = MessageContext(a_message(leased_at=-1e9), Leases())

    assert stale.lease_lost is False
    with pytest.raises(LeaseLostError) as caught:
        stale.check_lease()
    assert caught.value.message_id == "1-0"
    with pytest.raises(LeaseLostError):
        await stale.extend()
    assert [stale.lease_lost, stale.lease_remaining_s] == [True, 0.0]
    stale.message.mark_acknowledged()
    stale.check_lease()
    assert stale.acknowledged
