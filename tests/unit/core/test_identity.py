import os
import re
import socket
import subprocess
import sys

import pytest

from conquiet.core.identity import hostname, stable_consumer_id


def ids_of_a_new_process() -> list[str]:
    code = "from conquiet.core.identity import stable_consumer_id as s; print(s(), s(), s())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.spec("CM-003.2")
def test_a_name_is_host_and_pid_with_a_suffix_for_further_workers() -> None:
    first, second, third = ids_of_a_new_process()

    assert re.fullmatch(rf"consumer-{re.escape(hostname())}-\d+", first)
    assert (second, third) == (f"{first}-2", f"{first}-3")


def test_no_two_ids_of_one_process_are_alike() -> None:
    assert len({stable_consumer_id() for _ in range(100)}) == 100


def test_a_forked_child_starts_with_its_own_pid() -> None:
    before = stable_consumer_id()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, stable_consumer_id().encode())
        finally:
            os._exit(0)  # always: a second pytest on the same pipe would hang the run silently
    os.close(write)
    child_id = os.read(read, 200).decode()
    os.close(read)
    os.waitpid(pid, 0)

    assert child_id == f"consumer-{hostname()}-{pid}"
    assert child_id != before


def test_a_strange_host_name_cannot_forge_a_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "ho st\nFAKE")

    assert hostname() == "ho_st_FAKE"
