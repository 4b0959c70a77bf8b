"""The example of the handbook runs, each number has an explanation, and each state a badge."""

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from jinja2 import Environment
from jinja2.nodes import Call, Const

import conquiet.dashboard
from conquiet.dashboard import Dashboard
from conquiet.dashboard.explanations import explain
from conquiet.management.bulk_run_models import RunState
from conquiet.management.doctor.findings import Severity
from conquiet.management.jobs.models import JobPhase
from conquiet.management.models import ConsumerState

ROOT = Path(__file__).parents[3]
TEMPLATES = Path(conquiet.dashboard.__file__).parent / "templates"


async def test_the_example_of_the_handbook_runs(client_of: Callable[..., AsyncClient]) -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    client = client_of(names["app"], "http://shop.example")

    assert (await client.get("/conquiet/")).status_code == 401
    assert (await client.get("/conquiet/static/dashboard.css", headers={"x-user": "bob"})).status_code == 200
    assert (await client.post("/conquiet/dead/act", headers={"x-user": "bob"})).status_code == 403
    ann = await client.post("/conquiet/dead/act", headers={"x-user": "ann"}, data={"do": "replay"})
    assert "expired" in ann.text  # the right is there, the token of a form is not


@pytest.mark.parametrize("states", [ConsumerState, JobPhase, RunState, Severity])
def test_each_state_has_a_badge(states: type[StrEnum], make: Callable[..., Dashboard]) -> None:
    """A state without one would make its page an error."""
    environment = make()._parts.renderer.environment

    for one in states:
        assert f" {one.value}</span>" in environment.from_string("{{ state(value) }}").render(value=one.value)


def test_each_number_says_what_it_means_and_which_command_prints_it() -> None:
    places = {"num": 1, "tile": 2}
    named = set()
    for path in TEMPLATES.glob("*.html"):
        for call in Environment(autoescape=True).parse(path.read_text(encoding="utf-8")).find_all(Call):
            place = places.get(getattr(call.node, "name", ""))
            if place is not None:
                explained = call.args[place]
                assert isinstance(explained, Const)
                named.add(explained.value)

    assert len(named) > 20
    for name in named:
        assert "Printed by: " in explain(name)
