"""A delivered message and its states."""

from rich.pretty import pretty_repr
from tests.unit.runtime.messages import a_message

from conquiet.runtime.message import Ownership


def test_a_message_shows_no_payload() -> None:
    assert "secret" not in repr(a_message())
    assert "secret" not in pretty_repr(a_message())  # rich's output for local variables


def test_an_acknowledged_message_cannot_be_lost() -> None:
    """The heartbeat's thread may find the entry gone before the reply to its acknowledgement has arrived."""
    message = a_message()

    with message.settling():
        lost_while_settling = message.lose()
        message.mark_acknowledged()

    assert (lost_while_settling, message.lose(), message.acknowledged) == (False, False, True)


def test_a_moved_message_cannot_be_lost_before_the_engine_has_settled_it() -> None:
    message = a_message()

    with message.settling() as settling:
        settling.has_moved = True

    assert (message.ownership, message.lose()) == (Ownership.SETTLING, False)


def test_a_message_that_was_not_moved_is_held_again() -> None:
    message = a_message()

    with message.settling():
        pass

    assert message.ownership is Ownership.HELD
    assert message.lose()
    assert not message.lose()
    assert message.lease_lost
