"""SQLite for what needs a database and no server."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.bridge import Letter, Outcome, create_tables
from conquiet.bridge.payload import decode


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'db.sqlite'}", connect_args={"timeout": 0.2})
    create_tables(engine)
    yield engine
    engine.dispose()


class Recorder:
    """A target that takes everything, unless it is told otherwise."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.refuse: set[str] = set()
        self.break_with: Exception | None = None

    def publish(self, letters: Sequence[Letter]) -> list[tuple[Outcome, str]]:
        if self.break_with is not None:
            raise self.break_with
        verdicts = []
        blocked = set()
        for letter in letters:
            payload = decode(letter.payload)
            if letter.key in blocked:
                verdicts.append((Outcome.HELD, ""))
            elif payload.get("name") in self.refuse:
                verdicts.append((Outcome.REFUSED, "not wanted"))
                if letter.key is not None:
                    blocked.add(letter.key)
            else:
                self.payloads.append(payload)
                self.ids.append(letter.message_id)
                verdicts.append((Outcome.PUBLISHED, ""))
        return verdicts

    @property
    def names(self) -> list[str]:
        return [payload["name"] for payload in self.payloads]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
