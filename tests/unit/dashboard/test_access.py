import pytest

from conquiet.dashboard import EVERYTHING, READ_ONLY, Access, Action
from conquiet.errors import ConfigurationError


def test_a_right_without_a_pattern_covers_every_stream() -> None:
    access = Access("ann", may={"view", "replay"})

    assert access.allows(Action.REPLAY, "orders")
    assert access.allows(Action.REPLAY)
    assert not access.allows(Action.DISCARD, "orders")


def test_a_right_with_a_pattern_covers_those_streams_only() -> None:
    access = Access("ann", may={"view", "replay:orders*"})

    assert access.allows(Action.REPLAY, "orders-eu")
    assert not access.allows(Action.REPLAY, "emails")
    assert not access.allows(Action.REPLAY)
    assert access.allows_some(Action.REPLAY)


def test_looking_changes_nothing() -> None:
    assert not Access("ann", may={"view", "reveal:*"}).can_change
    assert Access("ann", may={"replay:orders"}).can_change


def test_a_visitor_may_look_and_the_token_may_do_everything() -> None:
    assert not Access("visitor", READ_ONLY).can_change
    assert all(Access("token", EVERYTHING).allows(action, "any") for action in Action)


def test_an_unknown_action_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no action 'delete'.*replay"):
        Access("ann", may={"delete"})


def test_a_text_in_place_of_a_set_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a set"):
        Access("ann", may="view")
