"""The folder of a supervisor is removed by the last process that uses it."""

import os
from pathlib import Path

from conquiet.cli.worker.shared_folder import SharedFolder


def test_the_last_that_leaves_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "metrics").mkdir(parents=True)
    (folder / "heartbeats").touch()
    supervisor, first, second = (SharedFolder(folder / "heartbeats") for _ in range(3))

    first.leave()
    assert folder.exists(), "the supervisor and another process use it"
    os.close(supervisor._lock)  # as the kernel does when the supervisor is killed
    assert folder.exists()
    second.leave()

    assert not folder.exists()
