"""Whom to ask for stale entries, and in which order: the decision, without a server."""

from conquiet.queue.recovery import MAX_PROBES, PAGE, Look, Probe, id_key, plan
from conquiet.queue.replies import Standing


def a_consumer(name: str, *, pending: int = 1, idle_ms: int = 0) -> Standing:
    return Standing(name.encode(), pending, idle_ms)


def test_quiet_consumers_come_first_and_long_lists_of_live_ones_last() -> None:
    known = [
        a_consumer("long", pending=PAGE + 1),
        a_consumer("short"),
        a_consumer("dead", pending=10 * PAGE, idle_ms=500),
        a_consumer("idle but done", pending=0, idle_ms=500),
    ]

    assert plan(known, min_idle_ms=500, turn=0) == [
        Probe(b"dead", Look.WHOLE),
        Probe(b"short", Look.WHOLE),
        Probe(b"long", Look.PAGED),
    ]


def test_the_number_of_probes_is_bounded_and_everyone_gets_a_turn() -> None:
    known = [a_consumer(f"c{n}") for n in range(3 * MAX_PROBES)]
    seen: set[bytes] = set()
    turn = 0

    for _ in range(4):
        probes = plan(known, min_idle_ms=500, turn=turn)
        assert len(probes) <= MAX_PROBES
        seen |= {probe.consumer for probe in probes}
        turn += len(probes)

    assert seen == {standing.name for standing in known}


def test_a_long_list_is_looked_at_however_many_short_ones_there_are() -> None:
    known = [a_consumer(f"c{n}") for n in range(2 * MAX_PROBES)] + [a_consumer("long", pending=PAGE + 1)]

    assert plan(known, min_idle_ms=500, turn=0)[-1] == Probe(b"long", Look.PAGED)


def test_nobody_holding_anything_is_nobody_to_ask() -> None:
    assert plan([a_consumer("a", pending=0)], min_idle_ms=1, turn=7) == []


def test_ids_are_ordered_by_number_and_not_as_text() -> None:
    assert id_key("9-1") < id_key("10-0") < id_key("10-2") < id_key("10-10")
