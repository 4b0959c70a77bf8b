"""Files in deploy/ call commands and options that exist, and name files that exist."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from conquiet.cli.app import app

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def parse(words: list[str]) -> None:
    """Parse a command line of ours without running it."""
    command: Any = get_command(app)
    context = command.make_context("conquiet", list(words), resilient_parsing=True)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, list(words), parent=context)


def units() -> Iterator[tuple[str, str]]:
    for path in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
        yield path.name, line


def manifests() -> Iterator[tuple[str, str]]:
    def commands(value: Any) -> Iterator[list[str]]:
        if isinstance(value, dict):
            words = [*value.get("command", []), *value.get("args", [])]
            if words:
                yield words
            for one in value.values():
                yield from commands(one)
        elif isinstance(value, list):
            for one in value:
                yield from commands(one)

    for path in sorted((DEPLOY / "kubernetes").glob("*.yml")):
        for document in yaml.safe_load_all(path.read_text()):
            for words in commands(document):
                yield path.name, shlex.join(words)


def compose() -> Iterator[tuple[str, str]]:
    text = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["worker"]["command"]
    for command in re.findall(r"conquiet [^&\"]+", text):
        yield "docker-compose.yml", command.strip()


COMMANDS = [*units(), *manifests(), *compose()]


def test_there_are_commands_to_check() -> None:
    assert {name for name, _ in COMMANDS} == {
        "conquiet-relay@.service", "conquiet-worker@.service", "worker.yml", "docker-compose.yml",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_every_command_line_is_one_of_ours(name: str, line: str) -> None:
    words = shlex.split(line.replace("%I", "shop:app").replace("%i", "shop:app"))
    assert Path(words[0]).name == "conquiet", name
    parse(words[1:])


def test_a_manifest_replaces_the_entry_point_of_our_container() -> None:
    """`args` would be appended to it: conquiet worker … conquiet worker shop:app."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yml").read_text())
    pods = [one["spec"]["template"]["spec"] for one in documents if "template" in one["spec"]]
    containers = [container for pod in pods for container in pod["containers"]]

    assert [one["name"] for one in containers] == ["worker", "tables"]
    assert [one["command"][0] for one in containers if "args" not in one] == ["conquiet", "conquiet"]


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "shop:app", "--no-such-option"])


def test_the_compose_file_mounts_files_that_exist() -> None:
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    mounted = [volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", [])]
    assert [name for name in mounted if not (DEPLOY / name).exists()] == []
    assert len(mounted) > 3


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here: the units are parsed above")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace("/srv/app/.venv/bin/conquiet", sys.executable)
        (tmp_path / path.name).write_text(text)
    files = [str(tmp_path / path.name) for path in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "conquiet-" in line] == []
