"""Random lives of a queue against a real server and a small model. ``CONQUIET_TORTURE=1`` runs ten times more."""

import os
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conquiet import QueueConfig, QueueMessage, RedisStreamsQueue
from conquiet.errors import MalformedMessageError

NAMES = ("alice", "bob")
names = st.sampled_from(NAMES)
TORTURE = 10 if os.environ.get("CONQUIET_TORTURE") else 1


class QueueLife(RuleBasedStateMachine):
    """The model: the stream, the position of the group, and the pending entries with owner and delivery count."""

    url = ""

    @initialize()
    def begin(self) -> None:
        self.client: Any = redis.Redis.from_url(self.url, protocol=2)
        self.stream = f"model-{uuid4().hex}"
        self.entries: dict[str, dict[str, Any] | None] = {}  # None is a malformed one
        self.unread: list[str] = []
        self.pending: dict[str, tuple[str, int]] = {}
        self.stale: set[str] = set()
        self.acked: set[str] = set()
        self.queues = {name: self.open(name) for name in NAMES}

    def open(self, name: str) -> RedisStreamsQueue:
        return RedisStreamsQueue(self.client, QueueConfig(self.stream, "billing", name))

    def outcome(self, step: Any, *arguments: Any) -> tuple[dict[str, tuple[Any, int]], set[str], set[str]]:
        """Good messages with their counts, malformed ids, deleted ids."""
        try:
            batch = step(*arguments)
        except MalformedMessageError as error:
            return {}, set(error.message_ids), set()
        good = {message.id: (message.payload, message.delivery_count) for message in batch}
        return good, {str(error.message_id) for error in batch.malformed}, set(batch.deleted)

    def expect_delivery(self, ids: list[str], name: str, found: tuple[Any, set[str], set[str]]) -> None:
        """Every requested entry was delivered, refused or named as deleted; the model moves on."""
        good, malformed, deleted = found
        there = [message_id for message_id in ids if message_id in self.entries]
        for message_id in there:
            self.pending[message_id] = (name, self.pending.get(message_id, (name, 0))[1] + 1)
            self.stale.discard(message_id)
        for message_id in set(ids) - set(there):
            self.pending.pop(message_id, None)
            self.stale.discard(message_id)
        assert malformed == {message_id for message_id in there if self.entries[message_id] is None}
        assert good == {
            message_id: (self.entries[message_id], self.pending[message_id][1])
            for message_id in there
            if self.entries[message_id] is not None
        }
        if good or not malformed:  # an error names malformed entries only
            assert deleted == set(ids) - set(there)

    # ------------------------------------------------------------------ steps
    @rule(name=names, n=st.integers(0, 3))
    def enqueue(self, name: str, n: int) -> None:
        payloads = [{"n": number} for number in range(n)]
        for message_id, payload in zip(self.queues[name].enqueue_many(payloads), payloads, strict=True):
            self.entries[message_id] = payload
            self.unread.append(message_id)

    @rule()
    def a_stranger_writes_nonsense(self) -> None:
        message_id = self.client.xadd(self.stream, {"data": "nonsense"}).decode()
        self.entries[message_id] = None
        self.unread.append(message_id)

    @rule(name=names, count=st.integers(1, 3))
    def read(self, name: str, count: int) -> None:
        ids, self.unread = self.unread[:count], self.unread[count:]
        self.expect_delivery(ids, name, self.outcome(self.queues[name].read, 1, count))

    @precondition(lambda self: self.pending)
    @rule(name=names, data=st.data())
    def ack(self, name: str, data: st.DataObject) -> None:
        """XACK does not check the owner."""
        message_id = data.draw(st.sampled_from(sorted(self.pending)))
        self.queues[name].ack_id(message_id)
        del self.pending[message_id]
        self.stale.discard(message_id)
        self.acked.add(message_id)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def time_passes_for_one(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.pending)))
        owner, count = self.pending[message_id]
        self.client.xclaim(
            self.stream, "billing", owner, 0, [message_id], idle=120_000, retrycount=count, justid=True
        )  # fmt: skip
        if message_id in self.entries:
            self.stale.add(message_id)
        else:
            # The server itself drops a deleted entry that a consumer tries to claim (Redis 7.0 and later).
            rows = self.client.xpending_range(self.stream, "billing", message_id, message_id, 1)
            if rows:
                self.stale.add(message_id)
            else:
                del self.pending[message_id]
                self.stale.discard(message_id)  # it may have been stale before it was deleted

    @rule(name=names, count=st.integers(1, 4))
    def claim(self, name: str, count: int) -> None:
        ids = sorted(self.stale, key=lambda message_id: tuple(map(int, message_id.split("-"))))[:count]
        self.expect_delivery(ids, name, self.outcome(self.queues[name].claim_stale, 60_000, count))

    @rule(name=names)
    def crash_and_recover(self, name: str) -> None:
        self.queues[name].close()
        self.queues[name] = self.open(name)
        own = [message_id for message_id, (owner, _) in self.pending.items() if owner == name]
        self.expect_delivery(own, name, self.outcome(self.queues[name].recover_own, 1000))

    @precondition(lambda self: self.pending)
    @rule(name=names, data=st.data())
    def extend(self, name: str, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.pending)))
        if message_id not in self.entries or self.entries[message_id] is None:
            return
        kept = self.queues[name].extend(QueueMessage(self.stream, "billing", message_id, {}))
        assert kept == (self.pending[message_id][0] == name)
        if kept:
            self.stale.discard(message_id)

    @precondition(lambda self: self.entries)
    @rule(keep=st.integers(0, 6))
    def somebody_trims(self, keep: int) -> None:
        self.client.xtrim(self.stream, keep, approximate=False)
        for message_id in list(self.entries)[: max(0, len(self.entries) - keep)]:
            del self.entries[message_id]
            if message_id in self.unread:
                self.unread.remove(message_id)

    # ------------------------------------------------------------------ what always holds
    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "queues"):
            return
        rows = self.client.xpending_range(self.stream, "billing", "-", "+", 10_000)
        held = {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}
        assert held == self.pending
        assert not self.acked & set(held)
        backlog = self.queues["alice"].backlog()
        assert (backlog.length, backlog.pending) == (len(self.entries), len(self.pending))
        assert backlog.lag is None or len(self.unread) <= backlog.lag <= len(self.entries)

    def teardown(self) -> None:
        if hasattr(self, "queues"):
            for queue in self.queues.values():
                queue.close()
            self.client.delete(self.stream)
            self.client.close()


@pytest.mark.spec("QC-002.1", "RS-002.2", "RS-005.22", "RS-005.26", "RS-002.11")
def test_random_lives_end_as_the_model_says(redis_url: str) -> None:
    machine = type("QueueLifeHere", (QueueLife,), {"url": redis_url})

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 * TORTURE,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
