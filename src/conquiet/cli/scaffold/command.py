"""``conquiet new NAME``: write a small project. Existing files are not overwritten."""

import keyword
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final

import typer

from conquiet.cli.errors import CommandError

_PLACEHOLDER: Final = "PROJECT"
_SUFFIX: Final = ".txt"  # the templates are not modules of conquiet

_NEXT: Final = {
    "plain": ("pytest", "conquiet dev PROJECT:app"),
    "fastapi": ("pytest", "conquiet dev PROJECT:app --web PROJECT:api"),
    "flask": ("pytest", "conquiet dev PROJECT:app --web PROJECT:web"),
    "django": (
        "python manage.py test",
        "python manage.py migrate --run-syncdb",
        "conquiet dev PROJECT.worker:app --web manage.py",
    ),
}


def new(
    name: Annotated[str, typer.Argument(help="Name of the project: a Python module name, such as shop.")],
    fastapi: Annotated[bool, typer.Option("--fastapi", help="With a FastAPI application.")] = False,
    flask: Annotated[bool, typer.Option("--flask", help="With a Flask application.")] = False,
    django: Annotated[bool, typer.Option("--django", help="As a Django project.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Without a web framework; the default.")] = False,
) -> None:
    """Write a small project into the folder NAME: an App with an exactly-once handler, and its tests.

    Its README explains how to run it. The tests and 'conquiet dev' need no server.

    Exit codes: 0 written, 2 the name cannot be used, or the folder is not empty.

    Examples:
        conquiet new shop --fastapi

        conquiet new shop --django
    """
    given = [kind for kind, wanted in zip(_NEXT, (plain, fastapi, flask, django), strict=True) if wanted]
    if len(given) > 1:
        raise CommandError(f"--{given[0]} and --{given[1]} cannot be given together", fix="choose one kind of project")
    _require_name(name)
    kind = given[0] if given else "plain"
    written = write_project(name, kind, Path.cwd() / name)
    typer.echo(f"wrote {len(written)} files into {name}/. Next:")
    for line in (f"cd {name}", *_NEXT[kind]):
        typer.echo(f"    {line.replace(_PLACEHOLDER, name)}")


def write_project(name: str, kind: str, folder: Path) -> list[Path]:
    """Write the files of a project and return their paths.

    Raises:
        CommandError: The folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder.name} exists already and is not empty", fix="choose another name, or empty it")
    return list(_copy(files("conquiet.cli.scaffold").joinpath("templates", kind), folder, name))


def _copy(source: Traversable, folder: Path, name: str) -> Iterator[Path]:
    """Copy a template and yield the path of each file that was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir(), key=lambda one: one.name):
        target = folder / entry.name.replace(_PLACEHOLDER, name).removesuffix(_SUFFIX)
        if entry.is_dir():
            yield from _copy(entry, target, name)
        else:
            target.write_text(entry.read_text("utf-8").replace(_PLACEHOLDER, name), "utf-8")
            yield target


def _require_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        raise CommandError(
            f"{name!r} cannot be the name of a project", fix="use lower-case letters, digits and _, such as my_shop"
        )
    if name in sys.stdlib_module_names or name in {"conquiet", "fastapi", "flask", "django", "test", "tests"}:
        raise CommandError(
            f"a project named {name!r} would hide the module of that name", fix="choose another one, such as my_shop"
        )
