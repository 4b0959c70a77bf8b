"""A command about dead letters names which ones, or all of them, and never both."""

import pytest

from conquiet.cli.dead_letter_sources import QueueSource, Selection, ServerOptions, StreamSource
from conquiet.cli.errors import CommandError


@pytest.mark.parametrize(
    ("selection", "only", "everything"),
    [(Selection(), "", False), (Selection(), "7-0", True), (Selection(error="LookupError"), "", True)],
)
def test_a_filter_and_all_are_refused_together_and_one_is_required(
    selection: Selection, only: str, *, everything: bool
) -> None:
    """With both, an operator who means a few would discard or replay all of them."""
    with pytest.raises(CommandError, match="choose the dead letters"):
        selection.choose(only, everything=everything)


@pytest.mark.parametrize(("only", "everything"), [("7-0", False), ("", True)])
def test_a_filter_alone_and_all_alone_are_accepted(only: str, *, everything: bool) -> None:
    assert Selection().choose(only, everything=everything) == Selection(only=only)


@pytest.mark.parametrize("selection", [Selection(event="paid"), Selection(group="billing")])
def test_filters_of_a_stream_are_refused_for_a_queue(selection: Selection) -> None:
    with pytest.raises(CommandError):
        QueueSource(ServerOptions(), "dead").where(selection)


def test_the_filter_of_a_queue_is_refused_for_a_stream() -> None:
    with pytest.raises(CommandError, match="--source is for RabbitMQ"):
        StreamSource(ServerOptions(), "orders").where(Selection(source="orders"))
