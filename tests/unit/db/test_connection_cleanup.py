"""Cleaning up a connection while an exception is being handled."""

import pytest

from conquiet.db.connection_cleanup import ConnectionCleanup, clean_up


class HandlerError(Exception):
    """Its text may quote a message and must not be logged."""


def fail() -> None:
    raise OSError("gone")


def test_an_error_raised_inside_has_no_context() -> None:
    seen: list[BaseException | None] = []

    def work() -> str:
        try:
            fail()
        except OSError as error:
            seen.extend([error.__context__, error.__context__.__context__ if error.__context__ else None])
        return "done"

    try:
        raise HandlerError("jane")
    except HandlerError:
        assert clean_up(work) == "done"

    assert isinstance(seen[0], ConnectionCleanup)
    assert seen[1] is None


def test_an_error_that_leaves_the_block_has_its_context_again() -> None:
    with pytest.raises(OSError, match="gone") as caught:  # noqa: PT012 - the test is about the chain
        try:
            raise HandlerError("jane")
        except HandlerError:
            clean_up(fail)

    assert isinstance(caught.value.__context__, HandlerError)


def test_without_an_error_being_handled_it_is_a_plain_call() -> None:
    assert clean_up(lambda: 7) == 7
    with pytest.raises(OSError, match="gone") as caught:
        clean_up(fail)
    assert caught.value.__context__ is None
