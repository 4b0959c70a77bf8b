"""Commands that take some of their options as one object."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from conquiet.cli.command_group import CommandGroup


@dataclass(frozen=True, slots=True)
class Choice:
    event: Annotated[str, typer.Option(help="An event.")] = ""
    limit: Annotated[int, typer.Option(min=1)] = 7
    only: str = "not an option"


def invoke(*words: str) -> str:
    app = CommandGroup()

    @app.command()
    def show(stream: str, *, only: str = "", where: Choice, last: bool = False) -> None:
        typer.echo(f"{stream} {only} {where} {last}")

    return CliRunner().invoke(app, words).output


def test_fields_with_an_option_are_options_of_the_command() -> None:
    assert invoke("orders", "--event", "paid", "--limit", "3", "--last") == (
        "orders  Choice(event='paid', limit=3, only='not an option') True\n"
    )


def test_a_field_without_an_option_leaves_the_parameter_of_its_name_alone() -> None:
    assert invoke("orders", "--only", "7-0") == "orders 7-0 Choice(event='', limit=7, only='not an option') False\n"


def test_options_are_listed_in_the_place_of_their_object() -> None:
    text = invoke("--help")

    assert text.index("--only") < text.index("--event") < text.index("--limit") < text.index("--last")
