"""Jobs that a filter selects."""

import pytest

from conquiet.management.jobs.models import JobFilter, JobPhase, JobReport


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        ("shop.errors.PaymentError", True),
        ("errors.PaymentError", True),
        ("PaymentError", True),
        ("attempts_exhausted", True),
        ("Error", False),
        ("MyPaymentError", False),
        ("shop.errors", False),
    ],
)
def test_a_job_is_found_by_the_last_parts_of_its_error(error: str, meant: bool) -> None:  # noqa: FBT001 - a row of the table
    """A filter that needs the whole path retries nothing, and looks as if there was nothing to retry."""
    reason = "attempts_exhausted"
    job = JobReport(
        id="1", event="pay", phase=JobPhase.DEAD, stream="s", error_type="shop.errors.PaymentError", reason=reason
    )

    assert JobFilter(error=error).accepts(job) is meant


def test_a_built_in_error_is_found_with_and_without_its_module() -> None:
    job = JobReport(id="1", event="pay", phase=JobPhase.DEAD, stream="s", error_type="KeyError")

    assert JobFilter(error="KeyError").accepts(job)
    assert JobFilter(error="builtins.KeyError").accepts(job)
