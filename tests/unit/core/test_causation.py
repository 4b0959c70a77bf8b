"""A message names the message of the handler that emitted it, and nothing of its payload."""

import contextvars

import pytest

from conquiet.core import causation
from conquiet.core.causation import CAUSED_BY, MOST_NOTED, MessageRef, read_cause


def in_own_context(work: object) -> object:
    return contextvars.copy_context().run(work)  # type: ignore[arg-type]


def emitted_by(handling: causation.Handling, headers: dict[str, str] | None, *ids: str) -> dict[str, str]:
    """Return the headers of messages that a handler emits."""

    def emit() -> dict[str, str]:
        causation.enter(handling)
        return dict(causation.carried(headers, "emails", *ids) or {})

    return contextvars.copy_context().run(emit)


def test_outside_a_handler_headers_stay_as_they_are() -> None:
    assert causation.current() is None
    assert causation.carried(None, "orders", "1") is None
    assert causation.carried({"a": "b"}, "orders", "1") == {"a": "b"}


def test_a_handlers_emits_carry_its_cause_and_are_recorded() -> None:
    def handle() -> causation.Handling:
        handling = causation.Handling("orders", "m-1", None, None)
        causation.enter(handling)
        headers = causation.carried({"a": "b"}, "emails", "m-2")
        assert headers is not None
        assert headers["a"] == "b"
        assert read_cause(headers) == MessageRef("orders", "m-1")
        return handling

    handling = in_own_context(handle)

    assert isinstance(handling, causation.Handling)
    assert handling.caused == [MessageRef("emails", "m-2")]
    assert causation.current() is None


def test_a_cause_that_the_caller_names_is_kept() -> None:
    given = {CAUSED_BY: '["other","m-0"]'}

    assert read_cause(emitted_by(causation.Handling("orders", "m-1", None, None), given)) == MessageRef("other", "m-0")


def test_only_the_first_messages_of_a_handler_are_noted() -> None:
    handling = causation.Handling("orders", "m-1", None, None)
    emitted_by(handling, None, "0", "1")
    for number in range(2, MOST_NOTED - 1):
        emitted_by(handling, None, str(number))
    emitted_by(handling, None, str(MOST_NOTED - 1), "one", "too many")
    emitted_by(handling, None, "and one more")

    assert handling.caused is not None
    assert [one.id for one in handling.caused] == [str(number) for number in range(MOST_NOTED)]


def test_a_name_too_long_for_a_header_is_left_out() -> None:
    assert emitted_by(causation.Handling("s" * 2_000, "m-1", None, None), None) == {}


@pytest.mark.parametrize("raw", ["", "no json", "{}", "[1,2]", '["a"]', '["a","b","c"]', '["' + "x" * 1_000 + '","b"]'])
def test_a_cause_written_by_another_program_is_ignored(raw: str) -> None:
    assert read_cause({CAUSED_BY: raw}) is None
