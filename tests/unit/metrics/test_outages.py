"""One outage is one line at its begin and one at its end."""

import pytest

from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch, is_reported
from conquiet.metrics.registry import SERVER_FAILED_ATTEMPTS_TOTAL, SERVER_OUTAGES_TOTAL

ADDRESS = "10.0.0.7:6379"


def value(metric: object, server: str) -> float:
    return float(getattr(metric, "labels")(server)._value.get())  # noqa: B009


def test_an_outage_of_several_parts_is_two_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    server = "Redis (unit test)"
    reader = OutageWatch(server, "nothing is read from orders")
    leases = OutageWatch(server, "leases are not renewed")

    for _ in range(60):
        reader.failed(QueueError("no connection to the server at 10.0.0.7:6379 (connection refused)"), address=ADDRESS)
        leases.failed(QueueError("no answer"))
    reader.succeeded()
    reader.succeeded()
    leases.succeeded()

    begin, end = caplog.messages
    assert begin.startswith(
        f"{server} at {ADDRESS} is unavailable; nothing is read from orders until it is back: Queue"
    )
    assert "connection refused" in begin
    assert end.startswith(f"{server} at {ADDRESS} is available again after 0.")
    assert "120 failed attempts" in end
    assert value(SERVER_OUTAGES_TOTAL, server) == 1
    assert value(SERVER_FAILED_ATTEMPTS_TOTAL, server) == 120


def test_a_part_that_ends_does_not_keep_the_outage_open(caplog: pytest.LogCaptureFixture) -> None:
    reader, leases = (OutageWatch("Redis (closing)", "nothing is read") for _ in range(2))
    reader.failed(QueueError("away"), address=ADDRESS)
    leases.failed(QueueError("away"), address=ADDRESS)

    reader.succeeded()
    leases.close()
    reader.failed(QueueError("away again"), address=ADDRESS)
    reader.close()

    assert [text.split(";")[0].split(" after ")[0].split(" when ")[0] for text in caplog.messages] == [
        f"Redis (closing) at {ADDRESS} is unavailable",
        f"Redis (closing) at {ADDRESS} was still unavailable",
        f"Redis (closing) at {ADDRESS} is unavailable",
        f"Redis (closing) at {ADDRESS} was still unavailable",
    ]


def test_two_servers_have_outages_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    one, two = (OutageWatch("Redis (two)", "nothing is read") for _ in range(2))
    error = QueueError("away")

    one.failed(error, address="a:1")
    two.failed(None, address="b:1")
    one.succeeded()
    two.succeeded()

    assert len(caplog.messages) == 4
    assert is_reported(error)
    assert not is_reported(QueueError("other"))


def test_a_part_that_was_dropped_open_does_not_hide_the_next_outage(caplog: pytest.LogCaptureFixture) -> None:
    """A whole process would never report that server again."""
    dropped = OutageWatch("Redis (dropped)", "nothing is read")
    dropped.failed(QueueError("away"), address=ADDRESS)
    del dropped

    watch = OutageWatch("Redis (dropped)", "nothing is read")
    watch.failed(QueueError("away"), address=ADDRESS)
    watch.close()

    assert sum("is unavailable" in text for text in caplog.messages) == 2


def test_an_outage_without_an_address_does_not_hide_one_with_an_address(caplog: pytest.LogCaptureFixture) -> None:
    unnamed, named = (OutageWatch("Redis (unnamed)", "nothing is read") for _ in range(2))

    unnamed.failed(QueueError("away"))
    named.failed(QueueError("away"), address=ADDRESS)
    unnamed.close()
    named.close()

    assert f"Redis (unnamed) at {ADDRESS} is unavailable" in caplog.text


def test_a_failure_after_the_end_of_a_part_begins_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """The heartbeat thread may have a command under way while its engine ends."""
    watch = OutageWatch("Redis (late)", "leases are not renewed")
    watch.close()

    watch.failed(QueueError("away"), address=ADDRESS)

    assert caplog.messages == []
