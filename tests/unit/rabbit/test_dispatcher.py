"""A consumer that breaks off parks one poisoned message at most."""

from types import SimpleNamespace
from typing import Any

from conquiet.errors import FatalSyncerError
from conquiet.rabbit.dispatcher import Dispatcher
from conquiet.rabbit.settle import Exhausted, SettlePolicy


def test_after_one_break_the_poison_guard_parks_no_other_message() -> None:
    """If two messages break the contract, an outage is likelier than two poison messages."""
    failures: list[Any] = []
    dispatcher: Any = SimpleNamespace(policy=SettlePolicy(poison_guard=True), _queue="work", _fail=failures.append)

    Dispatcher._break_off(dispatcher, Exhausted(), "was dead-lettered")

    assert dispatcher.policy == SettlePolicy(poison_guard=False)
    assert [type(failure) for failure in failures] == [FatalSyncerError]
