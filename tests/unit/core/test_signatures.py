import inspect
import pydoc
from dataclasses import dataclass, field
from typing import Any

from conquiet.core.signatures import takes_fields_of, takes_keywords_of


@dataclass(frozen=True)
class Settings:
    concurrency: int = 1
    grace_s: float = 25.0
    streams: list[str] = field(default_factory=list)


class Engine:
    """Runs."""

    @takes_fields_of(Settings, grace_s=5.0)
    def __init__(self, name: str, *, concurrency: int = 10, **options: Any) -> None:
        self.settings = Settings(concurrency=concurrency, **options)


def test_help_lists_each_field_in_place_of_the_options() -> None:
    shown = str(inspect.signature(Engine))

    assert shown == "(name: str, *, concurrency: int = 10, grace_s: float = 5.0, streams: list[str] = []) -> None"
    assert "grace_s: float = 5.0" in pydoc.plain(pydoc.render_doc(Engine))


@takes_keywords_of(Engine.__init__)
def start(name: str, **options: Any) -> Engine:
    return Engine(name, **options)


def test_help_of_a_forwarding_function_lists_the_keywords_it_forwards() -> None:
    shown = str(inspect.signature(start))

    assert shown.startswith("(name: str, *, concurrency: int = 10, grace_s: float = 5.0")
    assert start("one", grace_s=2.0).settings.grace_s == 2.0


def test_calls_are_not_changed() -> None:
    assert Engine("one", grace_s=1.0).settings == Settings(concurrency=10, grace_s=1.0)
