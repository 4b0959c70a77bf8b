"""When a relay counts as ready for ``conquiet worker``."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from conquiet.cli.worker.worker_loader import find_workers
from conquiet.core.backoff import Backoff
from conquiet.db import DbSession
from conquiet.testing import wait_until
from conquiet.transactional import Outbox, OutboxRelay, create_tables
from conquiet.transactional.relay_decisions import PublishOutcome


class Target:
    is_up = False

    def publish(self, messages: Sequence[Any]) -> Any:
        if not self.is_up:
            raise ConnectionRefusedError
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


def test_a_relay_is_ready_only_while_its_targets_can_be_reached(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
    create_tables(engine)
    target = Target()
    relay = OutboxRelay(engine, {"ledger": target}, poll_s=0.01, backoff=Backoff(base_s=0.01, cap_s=0.01))
    [worker] = find_workers(relay)
    assert not worker.health().ready

    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        wait_until(lambda: worker.health().ready, message="nothing to do")
        with DbSession(engine) as session:
            Outbox().add(session, "ledger", {"n": 1})
        wait_until(lambda: not worker.health().ready, message="the target is down")
        target.is_up = True
        wait_until(lambda: worker.health().ready, message="the target is up")
    finally:
        relay.stop()
        thread.join()
    relay.close()
    engine.dispose()
