"""The state that workers and orchestrator share."""

from pathlib import Path

from conquiet.cli.demo.shared_state import ALL, NONE, ControlState, DemoWorkerRow, DemoWorkerState, SharedState


def test_the_shared_state_survives_its_writer(tmp_path: Path) -> None:
    state = SharedState.create(tmp_path / "state", 2)
    other = SharedState(tmp_path / "state")
    other.write(1, DemoWorkerRow(pid=7, state=DemoWorkerState.WORKING, handled=5, in_flight=2))
    other.close()

    assert state.read(1) == DemoWorkerRow(7, DemoWorkerState.WORKING, 5, 0, 0, 2)
    assert state.read(0) == DemoWorkerRow()
    state.close()


def test_a_worker_reads_only_when_the_command_allows_it(tmp_path: Path) -> None:
    state = SharedState.create(tmp_path / "state", 2)
    other = SharedState(tmp_path / "state")

    seen = [other.command]
    for command in (ControlState(ALL), ControlState(1, freeze=1)):
        state.command = command
        seen.append(other.command)

    assert [[command.allows(row) for row in (0, 1)] for command in seen] == [
        [False, False],
        [True, True],
        [False, True],
    ]
    assert [command.freeze for command in seen] == [NONE, NONE, 1]
    assert state.read(0) == state.read(1) == DemoWorkerRow()
    state.close()
    other.close()
