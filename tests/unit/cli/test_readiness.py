"""When a relay counts as ready."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from conquiet.bridge import Outbox, OutboxRelay, create_tables
from conquiet.bridge.policy import Outcome
from conquiet.cli.worker.runnables import adapt
from conquiet.db import DbSession
from conquiet.kernel.backoff import Backoff
from conquiet.testing import wait_until


class Target:
    is_up = False

    def publish(self, letters: Sequence[Any]) -> Any:
        if not self.is_up:
            raise ConnectionRefusedError
        return [(Outcome.PUBLISHED, "")] * len(letters)


def test_a_relay_is_ready_only_while_its_targets_can_be_reached(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
    create_tables(engine)
    target = Target()
    relay = OutboxRelay(engine, {"ledger": target}, backoff=Backoff(base_s=0.001, cap_s=0.001))
    face = adapt(relay)
    assert face is not None

    relay.relay_once()
    nothing_to_do = face.ready()
    with DbSession(engine) as session:
        Outbox().add(session, "ledger", {"n": 1})
    relay.relay_once()
    down = face.ready()
    target.is_up = True
    wait_until(lambda: relay.relay_once().published, message="the target's next attempt")

    assert (nothing_to_do, down, face.ready()) == (True, False, True)
    relay.close()
    engine.dispose()
