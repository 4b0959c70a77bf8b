"""SQLite for what needs a database and no server."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.transactional import OutboxMessage, PublishOutcome, create_tables
from conquiet.transactional.payload import decode


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'db.sqlite'}", connect_args={"timeout": 0.2})
    create_tables(engine)
    yield engine
    engine.dispose()


class Recorder:
    """A target that takes everything but what it is set to refuse."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.refuse: set[str] = set()
        self.break_with: Exception | None = None

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        if self.break_with is not None:
            raise self.break_with
        results = []
        blocked = set()
        for message in messages:
            payload = decode(message.payload)
            if message.key in blocked:
                results.append((PublishOutcome.DEFERRED, ""))
            elif payload.get("name") in self.refuse:
                results.append((PublishOutcome.REFUSED, "not wanted"))
                if message.key is not None:
                    blocked.add(message.key)
            else:
                self.payloads.append(payload)
                self.ids.append(message.message_id)
                results.append((PublishOutcome.PUBLISHED, ""))
        return results

    @property
    def names(self) -> list[str]:
        return [payload["name"] for payload in self.payloads]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
