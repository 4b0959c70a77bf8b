"""The consumers that are scanned for stale entries, and their order."""

from conquiet.queue.pending_scan import MAX_TARGETS, PAGE, ScanMode, ScanTarget, plan
from conquiet.redis_transport.replies import ConsumerInfo


def a_consumer(name: str, *, pending: int = 1, idle_ms: int = 0) -> ConsumerInfo:
    return ConsumerInfo(name.encode(), pending, idle_ms)


def test_quiet_consumers_come_first_and_long_lists_of_live_ones_last() -> None:
    known = [
        a_consumer("long", pending=PAGE + 1),
        a_consumer("short"),
        a_consumer("dead", pending=10 * PAGE, idle_ms=500),
        a_consumer("idle but done", pending=0, idle_ms=500),
    ]

    assert plan(known, min_idle_ms=500, rotation=0) == [
        ScanTarget(b"dead", ScanMode.WHOLE),
        ScanTarget(b"short", ScanMode.WHOLE),
        ScanTarget(b"long", ScanMode.PAGED),
    ]


def test_the_number_of_targets_is_bounded_and_every_consumer_is_scanned() -> None:
    known = [a_consumer(f"c{n}") for n in range(3 * MAX_TARGETS)]
    seen: set[bytes] = set()
    rotation = 0

    for _ in range(4):
        targets = plan(known, min_idle_ms=500, rotation=rotation)
        assert len(targets) <= MAX_TARGETS
        seen |= {target.consumer for target in targets}
        rotation += len(targets)

    assert seen == {one.name for one in known}


def test_a_long_list_is_scanned_however_many_short_ones_there_are() -> None:
    known = [a_consumer(f"c{n}") for n in range(2 * MAX_TARGETS)] + [a_consumer("long", pending=PAGE + 1)]

    assert plan(known, min_idle_ms=500, rotation=0)[-1] == ScanTarget(b"long", ScanMode.PAGED)


def test_consumers_without_pending_entries_are_not_scanned() -> None:
    assert plan([a_consumer("a", pending=0)], min_idle_ms=1, rotation=7) == []
