"""The number of replicas that is enough, without a server."""

import pytest

from conquiet.errors import NotReplicatedError
from conquiet.redis_transport.replica_wait import ReplicaWait


@pytest.mark.parametrize(("wanted", "confirmed"), [(2, 1), (2, 0), (3, 2)])
def test_fewer_replicas_than_asked_for_are_an_error_in_doubt(wanted: int, confirmed: int) -> None:
    with pytest.raises(NotReplicatedError, match=f"{confirmed} of {wanted} replicas") as caught:
        ReplicaWait(wanted).check([b"OK", confirmed], stream="orders", command="emit")
    assert (caught.value.confirmed, caught.value.requested, caught.value.in_doubt) == (confirmed, wanted, True)


@pytest.mark.parametrize("confirmed", [2, 3])
def test_as_many_replicas_as_asked_for_are_enough(confirmed: int) -> None:
    ReplicaWait(2).check([b"OK", confirmed], stream="orders", command="emit")
