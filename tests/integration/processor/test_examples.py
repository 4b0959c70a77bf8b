"""The example of processor does what it describes."""

import pytest
from tests.examples import EXAMPLES, run_example

EXAMPLE = EXAMPLES / "processor_email.py"


@pytest.mark.spec("CM-006.3", "CM-006.4")
def test_the_email_sender_retries_dead_letters_and_replays(redis_url: str) -> None:
    ran = run_example(EXAMPLE, redis_url)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "the same id again: duplicate=True",
        "sent after 3 failures of the server: ['jane@example.org']",
        "dead: 1 x email.send, rejected: the mail server does not know this address",
        "replayed 1 of 1",
        "sent in the end: ['jane@example.org', 'joe@example.org'], dead letters left: 0",
    ]
