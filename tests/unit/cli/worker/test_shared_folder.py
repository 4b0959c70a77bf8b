"""The folder of a supervisor is removed by the last process that uses it, or by the next supervisor."""

import os
import tempfile
from pathlib import Path

import pytest

from conquiet.cli.worker.shared_folder import SharedFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def die(folder: SharedFolder) -> None:
    """End a use of the folder as the kernel does when a process is killed."""
    os.close(folder._lock)


def test_the_last_that_leaves_removes_the_folder() -> None:
    supervisor = SharedFolder.create()
    first, second = SharedFolder(supervisor.path), SharedFolder(supervisor.path)

    first.leave()
    assert supervisor.path.exists(), "the supervisor and another process use it"
    die(supervisor)
    assert supervisor.path.exists()
    second.leave()

    assert not supervisor.path.exists()


def test_the_next_supervisor_removes_a_folder_that_no_process_uses(temporary: Path) -> None:
    killed, running = SharedFolder.create(), SharedFolder.create()
    (killed.path / "metrics").mkdir()
    process = SharedFolder(killed.path)
    die(killed)
    SharedFolder.create().leave()
    assert killed.path.exists(), "a process of the killed supervisor uses it"

    die(process)
    SharedFolder.create().leave()

    assert list(temporary.iterdir()) == [running.path]
    running.leave()


def test_a_process_does_not_replace_a_lock_that_is_gone() -> None:
    """A cleaner of temporary files may delete it. The process would get the new one alone, and remove the folder."""
    supervisor = SharedFolder.create()
    (supervisor.path / "lock").unlink()

    with pytest.raises(FileNotFoundError):
        SharedFolder(supervisor.path).leave()

    assert supervisor.path.exists()
    supervisor.leave()


def test_a_folder_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = SharedFolder.create()
    die(killed)

    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: killed.path.stat().st_uid + 1)
        SharedFolder.create().leave()

    assert killed.path.exists()


def test_a_link_is_not_followed(temporary: Path) -> None:
    target = temporary / "target"
    target.mkdir()
    (target / "lock").touch()
    (temporary / "conquiet-worker-link").symlink_to(target)

    SharedFolder.create().leave()

    assert (target / "lock").exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another supervisor may find it in the moment between its creation and its lock."""
    opened = os.open
    found: list[Path] = []

    def remove_first(path: Path, *words: int) -> int:
        lock = opened(path, *words)
        if not found:
            found.append(path.parent)
            path.unlink()
            path.parent.rmdir()
        return lock

    monkeypatch.setattr(os, "open", remove_first)
    created = SharedFolder.create()
    monkeypatch.undo()

    assert created.path.exists()
    assert created.path not in found
    created.leave()
