"""The checker finds each anomaly in a history that has it, and nothing in a history without anomalies."""

import ast
import json
import lzma
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import check_history
import history_records
import pytest
from check_history import Anomaly

ROOT = Path(__file__).parents[3]
Record = dict[str, Any]

ONCE: Record = {"effects": "once"}


def a_header(**changes: Any) -> Record:
    return {"op": "header", "v": 1, "storm": "s", "seed": 1, "promise": ONCE, "recovery_s": 10.0} | changes


def rec(op: str, t: float = 0.0, p: int = 1, **fields: Any) -> Record:
    return {"op": op, "t": t, "p": p, **fields}


def a_life(message: str, t: float = 1.0, p: int = 1) -> list[Record]:
    """Return the records of a message that goes well."""
    return [
        rec("enqueue", id=message),
        rec("deliver", t, p, id=message, n=1),
        rec("effect", t + 0.1, p, id=message),
        rec("commit", t + 0.2, p, id=message),
        rec("ack", t + 0.3, p, id=message),
    ]


RECOVERY = rec("phase", 1.0, name="recovery")
END = [RECOVERY, rec("drained", 5.0), rec("state", left={"pending": 0}), rec("end", 6.0)]


def judge(*records: Record | Iterable[Record], header: Record | None = None, end: bool = True) -> dict[str, Any]:
    lines = [header or a_header()]
    for each in records:
        lines += [each] if isinstance(each, dict) else each
    lines += END if end else []
    return check_history.judge(history_records.parse(json.dumps(line) for line in lines))


def anomalies(*records: Record | Iterable[Record], header: Record | None = None, end: bool = True) -> set[str]:
    return set(judge(*records, header=header, end=end)["anomalies"])


KEYED = a_header(promise={"effects": "once", "order": {"": "enqueue"}})
TICKS = a_header(promise={"ticks": {"cron": 100}})
COUNTED = a_header(promise={"attempts": True})
STAGED = a_header(promise={"effects": "once", "stages": ["pay", "book"]})
COMMITTED = a_header(promise={"effects": "once", "commits": True})
COUNTERS = rec("state", counters={"1": 11}, opening=10)
AGAIN = rec("deliver", 2.0, 2, id="a", n=1)
AGAIN_CHARGED = rec("deliver", 2.0, 2, id="a", n=2)

BAD: list[tuple[Anomaly, list[Record], Record | None]] = [
    (Anomaly.LOST, [*a_life("a"), rec("enqueue", id="b")], None),
    (Anomaly.LOST, [rec("enqueue", id="a"), rec("state", dead=["a"])], None),
    (Anomaly.LOST, [rec("enqueue", id="a", expect="dead")], None),
    (Anomaly.LOST, [rec("enqueue", id="a"), rec("state", of="pay", effects=["a"])], STAGED),
    (Anomaly.LOST, [rec("add", row=1, by=1, ok=True), rec("add", row=1, by=1, ok=True), COUNTERS], None),
    (Anomaly.TWICE, [*a_life("a"), rec("effect", 2.0, id="a")], None),
    (Anomaly.EARLY_ACK, [*a_life("a"), *a_life("b"), rec("ack", 1.1, id="a")], COMMITTED),
    (
        Anomaly.EARLY_ACK,
        [*a_life("a"), rec("enqueue", id="b"), rec("effect", id="b"), rec("ack", 9.0, id="b")],
        COMMITTED,
    ),
    (
        Anomaly.EARLY_ACK,
        [*a_life("a"), rec("enqueue", id=1), rec("effect", id=1), rec("ack", 9.0, ids=[[1, 2]])],
        COMMITTED,
    ),
    (Anomaly.INVALID, [rec("enqueue", id="a"), rec("effect", id="a")], COMMITTED),
    (Anomaly.INVALID, [rec("enqueue", id="a"), rec("effect", id="a"), rec("commit", id="a")], COMMITTED),
    (Anomaly.TWICE, [*a_life("a"), rec("state", dead=["a"])], None),
    (Anomaly.TWICE, [rec("enqueue", id="a", expect="dead"), rec("state", dead=["a", "a"])], None),
    (Anomaly.TWICE, [*a_life("a"), rec("effect", 2.0, id="stranger")], None),
    (Anomaly.TWICE, [rec("add", row=1, by=1, ok=False), COUNTERS], None),
    (
        Anomaly.ORDER,
        [*(rec("enqueue", id=each, key="k") for each in "ab"), rec("state", effects=["b", "a"])],
        KEYED,
    ),
    (Anomaly.TICK_MISSED, [rec("tick", name="cron", due=due) for due in (100, 300)], TICKS),
    (Anomaly.TICK_MISSED, a_life("a"), TICKS),
    (Anomaly.TICK_DOUBLED, [rec("tick", name="cron", due=due) for due in (100, 200, 200)], TICKS),
    (Anomaly.STUCK, [*a_life("a"), rec("state", left={"unread": 3})], None),
    (
        Anomaly.LOCK,
        [*a_life("a"), rec("lock", 1.0, 1, name="row 1"), rec("lock", 1.1, 2, name="row 1")],
        None,
    ),
    (Anomaly.CHARGED, [*a_life("a"), AGAIN_CHARGED, rec("exit", 1.5, target=1)], COUNTED),
    (
        Anomaly.CHARGED,
        [*a_life("a"), rec("fault", 1.5, kind="outage", scope="server", charges=False), AGAIN_CHARGED],
        COUNTED,
    ),
    (Anomaly.LEAKED, [*a_life("a"), rec("state", leaked={"processes": [4711]})], None),
    (Anomaly.UNEXPLAINED, [*a_life("a"), AGAIN], None),
    (Anomaly.CANCELLED_RAN, [*a_life("a"), rec("cancel", 0.5, id="a", ok=True)], None),
    (Anomaly.NOT_REACHED, [*a_life("a"), rec("armed", point="x")], a_header(points={"x": 1})),
    (Anomaly.NOT_REACHED, [*a_life("a"), rec("reached", point="x")], a_header(points={"x": 1})),
    (Anomaly.INVALID, [*a_life("a"), rec("surprise")], None),
    (Anomaly.INVALID, [*a_life("a"), *a_life("a")], None),
    (Anomaly.INVALID, [], None),
    (Anomaly.INVALID, a_life("a"), a_header(v=2)),
]


@pytest.mark.parametrize(("anomaly", "records", "header"), BAD)
def test_each_anomaly_is_found(anomaly: Anomaly, records: list[Record], header: Record | None) -> None:
    assert anomaly.value in anomalies(records, header=header)


def test_there_is_a_bad_history_for_every_anomaly() -> None:
    assert {anomaly for anomaly, _, _ in BAD} == set(Anomaly)


def test_a_history_without_faults_is_clean() -> None:
    summary = judge(a_life("a"), a_life("b", 1.5, 2))

    assert summary["anomalies"] == {}
    assert (summary["messages"], summary["deliveries"], summary["again"], summary["faults"]) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("cause", "records"),
    [
        ("kill", [rec("fault", 1.2, 9, kind="kill", target=1, point="before-ack")]),
        ("stop", [rec("fault", 1.2, 9, kind="SIGSTOP", target=1)]),
        ("returned by the handler", [rec("release", 1.2, 1, id="a")]),
        ("clean stop", [rec("exit", 1.2, 9, target=1)]),
        ("restart", [rec("fault", 1.2, 9, kind="restart", scope="server")]),
        ("outage", [rec("fault", 0.2, 9, kind="outage", scope="server", until=1.5)]),
        (
            "error after a server's fault",
            [rec("fault", -5.0, 9, kind="lost reply", scope="server"), rec("error", 1.2, 1)],
        ),
    ],
)
def test_a_second_delivery_is_explained_by_its_fault(cause: str, records: list[Record]) -> None:
    summary = judge(a_life("a"), records, AGAIN)

    assert (summary["anomalies"], summary["causes"]) == ({}, {cause: 1})


def linked(t: float, p: int, link: float, *, lost: float | None = None) -> list[Record]:
    """Return a delivery by a connection, and its loss."""
    return [
        rec("deliver", t, p, id="a", link=link),
        *([] if lost is None else [rec("lost", lost, p, link=link)]),
    ]


SETTLED = [rec("enqueue", id="a"), rec("effect", 3.0, id="a")]
CUT = rec("fault", 2.0, 9, kind="reset", scope="server", until=3.0)
STOP = [rec("fault", 2.0, 9, kind="SIGSTOP", target=2), rec("resume", 14.0, 9, target=2)]


@pytest.mark.parametrize(
    ("cause", "records"),
    [
        # Its process got to the message long after the connection was cut.
        ("connection lost after a fault", [linked(5.0, 2, 1.0, lost=5.1), CUT, linked(5.2, 1, 4.0)]),
        ("sent before its connection was lost", [linked(5.0, 1, 4.0), CUT, linked(9.0, 2, 1.0, lost=9.1)]),
        # The broker received no heartbeat of process 2 and gave the message to process 1; then 2 woke up.
        ("sent before its connection was lost", [linked(12.0, 1, 1.0), STOP, linked(16.0, 2, 1.0, lost=16.1)]),
        ("connection lost after a fault", [linked(16.0, 2, 1.0, lost=16.1), STOP, linked(16.2, 1, 1.0)]),
        ("sent before its process stood still", [linked(12.0, 1, 1.0), STOP, linked(14.5, 2, 1.0)]),
        (
            "sent before its connection was lost",
            [linked(12.0, 1, 1.0), rec("stall", 2.0, 2, until=14.0), linked(16.0, 2, 1.0, lost=16.1)],
        ),
    ],
)
def test_a_process_that_gets_to_its_copy_late_is_explained(cause: str, records: list[Any]) -> None:
    lines = [line for each in records for line in ([each] if isinstance(each, dict) else each)]
    summary = judge(SETTLED, sorted(lines, key=lambda line: line["t"]))

    assert (summary["anomalies"], summary["causes"]) == ({}, {cause: 1})


@pytest.mark.parametrize(
    "records",
    [
        [linked(5.0, 2, 1.0), CUT, linked(5.2, 1, 4.0)],  # the connection was not lost
        [linked(5.0, 2, 4.0, lost=5.1), CUT, linked(5.2, 1, 4.0)],  # it was opened after the fault
        [linked(5.0, 2, 0.5, lost=1.0), CUT, linked(5.2, 1, 4.0)],  # it had been lost before the fault
        [linked(1.0, 1, 0.5), linked(1.5, 2, 1.0, lost=9.1), CUT],  # both were before the fault
        [linked(12.0, 1, 1.0), STOP, linked(16.0, 2, 1.0)],  # it survived the stop, and this is two seconds later
        [linked(1.5, 1, 1.0), STOP, linked(14.5, 2, 1.0)],  # the first was before the stop
    ],
)
def test_a_connection_that_no_fault_ended_explains_nothing(records: list[Any]) -> None:
    lines = [line for each in records for line in ([each] if isinstance(each, dict) else each)]

    assert anomalies(SETTLED, sorted(lines, key=lambda line: line["t"])) == {Anomaly.UNEXPLAINED.value}


def test_a_process_that_is_resumed_has_been_stopped() -> None:
    assert anomalies(a_life("a"), rec("resume", 2.0, 9, target=1)) == {Anomaly.INVALID.value}


def test_slowness_explains_a_claim_only_where_the_header_allows_it() -> None:
    assert anomalies(a_life("a"), AGAIN) == {Anomaly.UNEXPLAINED.value}
    assert anomalies(a_life("a"), AGAIN, header=a_header(claim_idle_s=0.5)) == set()
    assert anomalies(a_life("a"), AGAIN, header=a_header(claim_idle_s=5.0)) == {Anomaly.UNEXPLAINED.value}
    stalled = rec("stall", 0.9, 1, until=1.4)
    assert anomalies(a_life("a"), stalled, AGAIN, header=a_header(claim_idle_s=5.0)) == set()


@pytest.mark.parametrize(("since", "explained"), [(0.4, True), (0.9, False)])
def test_slowness_counts_from_the_last_renewal_of_the_lease(since: float, explained: bool) -> None:  # noqa: FBT001
    """The handler may begin just before its lease expires; then another worker claims the message."""
    first = rec("deliver", 1.0, 1, id="a", n=1, since=since)
    life = [line if line["op"] != "deliver" else first for line in a_life("a")]
    again = rec("deliver", 1.05, 2, id="a", n=1)
    header = a_header(claim_idle_s=0.5)

    assert anomalies(life, again, header=header) == (set() if explained else {Anomaly.UNEXPLAINED.value})


def test_a_stall_between_renewal_and_start_explains_a_claim() -> None:
    first = rec("deliver", 1.0, 1, id="a", n=1, since=0.8)
    life = [line if line["op"] != "deliver" else first for line in a_life("a")]
    stalled = rec("stall", 0.85, 1, until=0.95)
    again = rec("deliver", 1.05, 2, id="a", n=1)

    assert anomalies(life, stalled, again, header=a_header(claim_idle_s=5.0)) == set()


@pytest.mark.parametrize(
    "records",
    [
        [rec("fault", 1.2, 9, kind="kill", target=2)],  # another process
        [rec("fault", 2.5, 9, kind="kill", target=1)],  # afterwards
        [rec("fault", 9.0, 9, kind="restart", scope="server")],
        [rec("release", 1.2, 1, id="b")],  # another message
    ],
)
def test_a_fault_elsewhere_explains_nothing(records: list[Record]) -> None:
    assert Anomaly.UNEXPLAINED.value in anomalies(a_life("a"), records, AGAIN, end=False)


def test_an_ack_after_the_commit_of_any_delivery_is_in_order() -> None:
    first = [*a_life("a")[:4], rec("fault", 1.25, kind="kill -9", target=1)]
    second = [rec("deliver", 2.0, 2, id="a", n=1), rec("ack", 2.1, 2, ids=["a"])]

    assert anomalies(first, second, header=COMMITTED) == set()


def test_a_dead_letter_is_acknowledged_without_a_commit() -> None:
    dead = [rec("enqueue", id="b", expect="dead"), rec("ack", 2.0, id="b"), rec("state", dead=["b"])]

    assert anomalies(a_life("a"), dead, header=COMMITTED) == set()


def test_commits_are_judged_only_where_the_header_promises_them() -> None:
    assert anomalies(a_life("a"), rec("ack", 1.1, id="a")) == set()


def test_a_killed_holder_has_left_its_lock() -> None:
    inside = [rec("lock", 1.0, 1, name="row"), rec("lock", 1.5, 2, name="row")]

    assert anomalies(a_life("a"), inside) == {Anomaly.LOCK.value}
    assert anomalies(a_life("a"), inside, rec("fault", 1.2, 9, kind="kill", target=1)) == set()


def test_an_answer_that_a_kill_took_away_may_count_or_not() -> None:
    for moved in (0, 1):
        state = rec("state", counters={"1": 10 + moved}, opening=10)
        assert anomalies(rec("add", row=1, by=1, ok=None), state) == set()


def test_draining_too_late_is_stuck() -> None:
    late = [rec("fault", 1.0, kind="kill", target=3), RECOVERY, rec("drained", 12.0), rec("end", 13.0)]

    assert anomalies(a_life("a"), late, end=False) == {Anomaly.STUCK.value}
    assert anomalies(a_life("a"), late, header=a_header(recovery_s=11.0), end=False) == set()


def test_a_history_has_to_say_when_its_recovery_began() -> None:
    without = [record for record in END if record is not RECOVERY]

    assert anomalies(a_life("a"), without, end=False) == {Anomaly.INVALID.value}
    assert anomalies(a_life("a"), END, end=False) == set()


def test_never_drained_and_cut_off_are_anomalies() -> None:
    assert anomalies(a_life("a"), end=False) == {Anomaly.STUCK.value, Anomaly.INVALID.value}


def test_a_range_stands_for_many_messages() -> None:
    summary = judge(rec("enqueue", range=[0, 1_000]), rec("state", effects=list(range(1_000))))

    assert (summary["messages"], summary["anomalies"]) == (1_000, {})


def test_a_record_of_a_batch_stands_for_each_of_its_messages() -> None:
    sent = rec("enqueue", range=[0, 7])
    first, second = rec("deliver", 1.0, 1, ids=[[0, 5], 6]), rec("deliver", 2.0, 2, ids=[[3, 7]])
    effects = rec("state", effects=[[0, 5], [6, 7], 5])

    found = judge(sent, first, second, effects)
    killed = judge(sent, first, rec("fault", 1.5, 9, kind="kill -9", target=1), second, effects)
    returned = judge(sent, first, rec("release", 1.5, 1, ids=[[3, 5]]), second, effects)

    assert (found["messages"], found["deliveries"]) == (7, 10)
    assert found["anomalies"] == {Anomaly.UNEXPLAINED.value: 3}
    assert (killed["anomalies"], killed["causes"]) == ({}, {"kill": 3})
    assert returned["causes"] == {"returned by the handler": 2, "none": 1}


def test_a_gap_or_an_overlap_in_packed_effects_is_found() -> None:
    sent = rec("enqueue", range=[0, 10])

    assert judge(sent, rec("state", effects=[[0, 4], [5, 10]]))["anomalies"] == {"lost": 1}
    assert judge(sent, rec("state", effects=[[0, 6], [5, 10]]))["anomalies"] == {"effect twice": 1}


def test_a_message_sent_twice_may_be_delivered_twice_without_a_fault() -> None:
    twice = [rec("enqueue", id="a", copies=2), *a_life("a")[1:]]

    assert judge(twice, AGAIN)["causes"] == {"sent more than once": 1}
    assert anomalies(twice, AGAIN, rec("deliver", 3.0, 2, id="a")) == {Anomaly.UNEXPLAINED.value}
    same_batch = rec("deliver", 1.0, ids=["a", "a"])
    assert anomalies(twice[0], same_batch, twice[2]) == set()
    assert anomalies(rec("enqueue", id="a"), same_batch, twice[2]) == {Anomaly.UNEXPLAINED.value}


def test_a_cut_connection_explains_by_its_kind() -> None:
    cut = rec("fault", 1.2, 9, kind="connection cut at Redis", target=1)

    assert judge(a_life("a"), cut, AGAIN)["causes"] == {"connection cut at Redis": 1}
    assert anomalies(a_life("a"), cut | {"target": 2}, AGAIN) == {Anomaly.UNEXPLAINED.value}


def test_a_large_history_needs_little_memory() -> None:
    """Half a kilobyte for a message: a history of a million is judged in half a gigabyte."""
    count, size = 40_000, 200
    lines = [a_header(), rec("enqueue", range=[0, count])]
    lines += [rec("deliver", at / 1_000, 1, ids=[[at, at + size]]) for at in range(0, count, size)]
    lines += [rec("state", effects=[[0, count]]), *END]
    texts = [json.dumps(line) for line in lines]

    tracemalloc.start()
    summary = check_history.judge(history_records.parse(texts))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (summary["messages"], summary["deliveries"], summary["anomalies"]) == (count, count, {})
    assert most / count < 500


KILLED_PRIMARY = rec("fault", 3.0, kind="kill primary", scope="server", loses_s=1.0)


@pytest.mark.parametrize(
    ("message", "lost", "by_replication"),
    [
        (rec("enqueue", 2.5, id="1", replicated=False), 0, 1),
        (rec("enqueue", 2.5, id="1"), 1, 0),
        (rec("enqueue", 1.5, id="1", replicated=False), 1, 0),
        (rec("enqueue", 2.5, id="1", expect="unsure"), 0, 0),
    ],
    ids=["just before, without a replica", "with a replica", "long before", "not answered"],
)
def test_a_killed_primary_explains_what_no_replica_had(message: Record, lost: int, by_replication: int) -> None:
    found = judge(message, KILLED_PRIMARY)

    assert found["anomalies"].get("lost", 0) == lost
    assert found["lost_by_replication"] == by_replication


@pytest.mark.parametrize(("sent_at", "lost"), [(4.9, 1), (5.1, 0), (14.0, 0), (15.9, 0), (16.1, 1)], ids=str)
def test_a_fail_over_explains_what_was_sent_meanwhile_without_a_replica(sent_at: float, lost: int) -> None:
    fail_over = rec("fault", 5.0, kind="planned fail-over", scope="server", until=16.0, loses_s=0.0)

    found = judge(rec("enqueue", sent_at, id="1", replicated=False), fail_over)

    assert (found["anomalies"].get("lost", 0), found["lost_by_replication"]) == (lost, 1 - lost)


def test_a_message_of_one_stage_has_its_effect_there() -> None:
    header = a_header(promise={"effects": "once", "stages": ["queue", "app"], "repeatable": ["queue"]})
    sent = [rec("enqueue", id="1", of="queue"), rec("enqueue", id="2", of="app")]

    repeated = judge(
        sent, rec("state", effects=["1", "1"], of="queue"), rec("state", effects=["2"], of="app"), header=header
    )
    twice = judge(
        sent, rec("state", effects=["1"], of="queue"), rec("state", effects=["2", "2"], of="app"), header=header
    )
    elsewhere = judge(sent, rec("state", effects=["1", "2"], of="queue"), header=header)

    assert repeated["anomalies"] == {}
    assert twice["anomalies"] == {"effect twice": 1}
    assert elsewhere["anomalies"] == {"lost": 1}


def test_the_command_exits_with_one_for_a_bad_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.jsonl.xz", tmp_path / "bad.jsonl"
    lines = [a_header(), *a_life("a"), *END]
    good.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    bad.write_text("\n".join(map(json.dumps, [*lines[:-1], rec("enqueue", id="b"), lines[-1]])), encoding="utf-8")

    assert check_history.main([str(good)]) == 0
    assert check_history.main([str(good), str(bad)]) == 1
    assert "lost: message b is nowhere" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["check_history", "history_causes", "history_records"])
def test_the_checker_imports_the_standard_library_alone(name: str) -> None:
    tree = ast.parse((ROOT / "scripts" / f"{name}.py").read_text(encoding="utf-8"))

    found = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    standard = {"argparse", "bisect", "collections", "dataclasses", "enum", "json", "lzma", "pathlib", "sys", "typing"}
    assert found <= standard | {"__future__", "collections.abc", "history_causes", "history_records"}


def test_the_format_page_names_every_record_and_anomaly() -> None:
    page = (ROOT / "docs" / "history-format.md").read_text(encoding="utf-8")

    assert [op for op in history_records._RECORDS if f"`{op}`" not in page] == []
    assert [anomaly.value for anomaly in Anomaly if anomaly.value not in page] == []
