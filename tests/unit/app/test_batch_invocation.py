"""Outcomes of a batch, by position: of payloads that do not fit, and as the call returned them."""

import pytest

from conquiet.app.batch_invocation import _joined
from conquiet.core.batch_run import Outcome

UNFIT = ValueError("does not fit")
FAILED = KeyError("failed")


@pytest.mark.parametrize(
    ("decoded", "returned", "expected"),
    [
        ([None, None], None, None),
        ([None, None], [None, None], [None, None]),
        ([None, UNFIT], None, [None, UNFIT]),
        ([UNFIT, None, None], [FAILED, None], [UNFIT, FAILED, None]),
        ([None, UNFIT, None], [None, FAILED], [None, UNFIT, FAILED]),
        ([None, UNFIT, None], [FAILED, None], [FAILED, UNFIT, None]),
    ],
)
def test_an_outcome_belongs_to_the_message_that_it_is_about(
    decoded: list[Outcome], returned: list[Outcome] | None, expected: list[Outcome] | None
) -> None:
    """The handler does not get a message with a payload that does not fit, so its result is shorter than the batch."""
    assert _joined(decoded, returned) == expected
