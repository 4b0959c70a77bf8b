"""Names and defaults in the documents match the code, and every setting is documented."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from conquiet.cli.app import app
from conquiet.config import QueueConfig
from conquiet.metrics import registry
from conquiet.processor import ProcessorSettings
from conquiet.rabbit import RabbitSettings
from conquiet.runtime import RuntimeSettings
from conquiet.scheduler import ScheduleEntry
from conquiet.testing import FaultProxy
from conquiet.transactional import OutboxRelay

ROOT = Path(__file__).resolve().parents[3]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*) \|", re.MULTILINE)

SETTINGS: list[tuple[str, Any]] = [
    ("queue", QueueConfig),
    ("runtime", RuntimeSettings),
    ("processor", ProcessorSettings),
    ("rabbit", RabbitSettings),
    ("scheduler", ScheduleEntry),
]


def shown(value: object) -> str:
    """Return a default as the tables write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == 1_048_576:
        return "1 MiB"
    return f"{value:,.10g}" if isinstance(value, int | float) else f"`{value}`"


def defaults_in(page: str) -> dict[str, str]:
    """Return setting and default of each row; ``1_000`` is written ``1,000``, so a list has a blank after the comma."""
    found: dict[str, str] = {}
    for names, defaults in ROW.findall(PAGES[page]):
        settings, values = re.findall(r"`(\w+)`", names), defaults.strip().split(", ")
        if len(settings) == len(values):
            found |= dict(zip(settings, values, strict=True))
    return found


@pytest.mark.parametrize(("page", "settings"), SETTINGS, ids=[page for page, _ in SETTINGS])
def test_every_setting_is_on_its_page(page: str, settings: type[Any]) -> None:
    assert [field.name for field in dataclasses.fields(settings) if f"`{field.name}`" not in PAGES[page]] == []


@pytest.mark.parametrize(("page", "settings"), [one for one in SETTINGS if one[0] != "scheduler"])
def test_the_defaults_in_the_tables_are_those_of_the_code(page: str, settings: type[Any]) -> None:
    written = defaults_in(page)
    plain = {
        field.name: field.default for field in dataclasses.fields(settings) if isinstance(field.default, int | float)
    }

    assert {name: written[name] for name in plain} == {name: shown(default) for name, default in plain.items()}


def test_the_settings_of_the_relay_are_on_its_page() -> None:
    for name, default in (OutboxRelay.__init__.__kwdefaults__ or {}).items():
        if isinstance(default, int | float):
            assert f"{name}={default}" in PAGES["exactly-once"]


def test_every_metric_is_on_a_page_by_its_name() -> None:
    """In full, or without ``conquiet_<package>_`` if the page states the prefix once for all of them."""
    text = "\n".join(PAGES.values()).replace("…_deleted_total", "conquiet_queue_messages_deleted_total")
    braced = re.compile(r"(conquiet_\w+_)\{([\w,]+)\}(\w+)")
    text += " ".join(f"{a}{middle}{z}" for a, all_, z in braced.findall(text) for middle in all_.split(","))
    source = Path(registry.__file__).read_text(encoding="utf-8")
    declared = re.findall(r"_(?:counter|gauge|histogram)\(\s*\"(conquiet_(\w+?)_(\w+))\"", source)

    assert len(declared) > 40
    assert [full for full, _, short in declared if full not in text and f"`{short}" not in text] == []


def test_every_option_that_the_handbook_names_exists() -> None:
    commands, known = [get_command(app)], {"--help", "--debug", "--apply-to"}  # the last one is rabbitmqctl's
    while commands:
        command: Any = commands.pop()
        commands += getattr(command, "commands", {}).values()
        known |= {word for option in command.params for word in option.opts}

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES["cli"])) <= known


def test_contributing_names_every_target_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)) - {"help"}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert {target for target in targets if f"`make {target}`" not in contributing} == set()


def test_the_documented_methods_of_the_fault_proxy_exist() -> None:
    methods = re.findall(r"`(\w+)\(", PAGES["testing"].partition("| method | effect |")[2].partition("\n\n")[0])

    assert len(methods) >= 8
    assert [name for name in methods if not hasattr(FaultProxy, name)] == []


def test_the_table_of_the_doctor_lists_every_check_once() -> None:
    files = [*(ROOT / "src/conquiet/management/doctor").glob("*.py"), ROOT / "src/conquiet/cli/commands/doctor.py"]
    source = "".join(path.read_text("utf-8") for path in files)
    checks = set(re.findall(r'"((?:redis|mysql|postgres|database|rabbit|inbox)\.[a-z_.]+)",', source))
    for name in re.findall(r'f"\{facts\.product\}\.([a-z_]+)",', source):
        checks |= {f"mysql.{name}", f"postgres.{name}"}

    table = (ROOT / "docs/cli.md").read_text("utf-8").partition("## The doctor")[2].partition("\n## ")[0]
    names = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(name for row in names for name in re.findall(r"`(\w+(?:\.\w+)+)`", row)) == sorted(checks)
