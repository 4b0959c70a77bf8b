"""Jobs of a stream by the command: output, changes and exit codes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from conquiet import SyncEmitter
from conquiet.processor.keys import keys_of

Run = Callable[..., Any]


@pytest.fixture
def quick(invoke: Run, redis_url: str) -> Run:
    """The command with the Redis of the test in the environment."""

    def call(*words: str) -> Any:
        return invoke(*words, env={"CONQUIET_REDIS_URL": redis_url})

    return call


@pytest.fixture
def stream(client: Redis, key_prefix: str) -> str:
    name = f"{key_prefix}orders"
    client.xgroup_create(name, "processor", "0", mkstream=True)
    with SyncEmitter(client, name) as emitter:
        emitter.emit("mail", {"to": "jane@example.com"}, id="now")
        emitter.emit("mail", {"to": "jane@example.com"}, id="later", delay_s=600)
    return name


def test_jobs_are_listed_and_shown_without_their_data(quick: Run, stream: str) -> None:
    listed = json.loads(quick("jobs", "list", stream, "--phase", "delayed", "--json").stdout)
    shown = quick("jobs", "show", stream, "later")
    with_data = quick("jobs", "show", stream, "later", "--show-payload", "--json")
    unknown = quick("jobs", "show", stream, "other")

    assert [job["id"] for job in listed["jobs"]] == ["later"]
    assert "delayed" in shown.stdout
    assert "jane" not in shown.stdout
    assert "jane" in with_data.stdout
    assert (unknown.returncode, "nothing is known of job other" in unknown.stderr) == (2, True)


def test_one_job_is_moved_and_cancelled_by_its_id(quick: Run, client: Redis, stream: str) -> None:
    moved = quick("jobs", "reschedule", stream, "later", "--delay-s", "86400")
    refused = quick("jobs", "run-now", stream, "now")
    promoted = quick("jobs", "run-now", stream, "later")
    cancelled = [quick("jobs", "cancel", stream, job).stdout for job in ("now", "later")]
    again = quick("jobs", "cancel", stream, "now")

    assert (moved.returncode, refused.returncode, promoted.returncode) == (0, 1, 0)
    assert moved.stdout == "later is due in 86400 s (it was delayed)\n"
    assert cancelled == [f"{job} is cancelled (it was waiting)\n" for job in ("now", "later")]
    assert again.stdout == "now is cancelled\n"
    assert (client.xlen(stream), client.zcard(keys_of(stream).delayed)) == (0, 0)


def test_many_jobs_need_a_choice_and_a_reset_its_name(quick: Run, client: Redis, stream: str) -> None:
    without = quick("jobs", "bulk", "cancel", stream, "--phase", "delayed")
    would = quick("jobs", "bulk", "cancel", stream, "--phase", "delayed", "--event", "mail", "--dry-run")
    done = quick("jobs", "bulk", "cancel", stream, "--phase", "delayed", "--event", "mail", "--name", "monday")
    unconfirmed = quick("jobs", "reset", stream)
    counted = quick("jobs", "reset", stream, "--dry-run")
    emptied = quick("jobs", "reset", stream, "--confirm", stream)

    assert (without.returncode, "choose the jobs" in without.stderr) == (2, True)
    assert would.stdout == "1 of 1 jobs match: nothing was changed\n"
    assert done.stdout == "1 of 1 jobs changed (run monday)\n"
    assert (unconfirmed.returncode, f"--confirm {stream}" in unconfirmed.stderr) == (2, True)
    assert counted.stdout == "1 entries, 0 delayed, 0 parked, 0 dead would be deleted\n"
    assert emptied.stdout == "1 entries, 0 delayed, 0 parked, 0 dead deleted\n"
    assert client.xlen(stream) == 0
