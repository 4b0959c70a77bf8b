"""Write docs/settings.md, docs/errors.md and docs/commands.md from the code.

    python scripts/reference_docs.py            write them
    python scripts/reference_docs.py --check    exit with 1 if one is out of date

Settings: names, defaults and texts come from the classes that users configure; the unit is in the name. Errors: the
text is the docstring, what to do is in ``error_remedies.toml``, which has to name every public error. Commands: what
``--help`` shows.
"""

import dataclasses
import enum
import inspect
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.main import get_command

sys.path.insert(0, str(Path(__file__).resolve().parent))

import api_docs
import generated

from conquiet.runtime import RuntimeSettings

DOCS = Path(__file__).resolve().parent.parent / "docs"
REMEDIES = Path(__file__).resolve().with_name("error_remedies.toml")

SETTINGS = {
    "Application": ["conquiet.app.App", "conquiet.app.AppSettings"],
    "Database": ["conquiet.config.DbConfig", "conquiet.db.DbWriter"],
    "Inbox, outbox and relay": [
        "conquiet.transactional.Inbox",
        "conquiet.transactional.Outbox",
        "conquiet.transactional.OutboxRelay",
        "conquiet.transactional.LeaseCheck",
        "conquiet.transactional.DatabaseRetention",
        "conquiet.transactional.Purger",
    ],
    "Queue": ["conquiet.config.QueueConfig", "conquiet.queue.Retention"],
    "Runtime": ["conquiet.runtime.Consumer", "conquiet.runtime.RuntimeSettings"],
    "Processor": [
        "conquiet.processor.Processor",
        "conquiet.processor.ProcessorSettings",
        "conquiet.processor.RetryPolicy",
        "conquiet.processor.RateLimit",
    ],
    "Scheduler": [
        "conquiet.scheduler.Scheduler",
        "conquiet.scheduler.ScheduleEntry",
        "conquiet.scheduler.Cron",
        "conquiet.scheduler.Every",
        "conquiet.scheduler.Once",
    ],
    "RabbitMQ": ["conquiet.rabbit.RabbitSettings"],
    "Dashboard": ["conquiet.dashboard.DashboardSettings"],
}
"""Classes that users configure, by the part they belong to."""

UNITS = {
    "_ms": "ms", "_s": "s", "_bytes": "bytes", "_percent": "%", "_mb": "MB", "_per_s": "per second", "_days": "days"
}  # fmt: skip

HEAD = "Written by `make api` from the code; a test fails when it is out of date. Do not edit.\n"


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# ------------------------------------------------------------------ settings
def documented(cls: type) -> dict[str, str]:
    """Return what a class docstring says about each argument or attribute."""
    found: dict[str, str] = {}
    name = section = ""
    for line in api_docs.description(cls).splitlines():
        if line.startswith("**"):
            section = line
        elif section in {"**Args**", "**Attributes**"} and line.startswith("- `"):
            name, _, text = line[3:].partition("`: ")
            found[name.lstrip("*")] = text
        elif section and name and line.startswith("  "):
            found[name] += f" {line.strip()}"
    return found


def default_of(parameter: inspect.Parameter, cls: type) -> str:
    """Return a default as Python writes it; a value that a factory makes is shown as made."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    for field in fields:
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
            if value != field.default_factory():
                return "random"
    return f"`{_written(value)}`"


def _written(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "_")
    if value is None or isinstance(value, bool | str | bytes | tuple | frozenset | dict | list):
        return repr(value)
    return f"{type(value).__name__}(…)"


def unit_of(name: str) -> str:
    """Return the unit that the end of a name states."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def settings_of(place: str) -> tuple[type, list[tuple[str, str, str, str]]]:
    """Return a class and name, default, unit and meaning of each of its settings."""
    module, _, name = place.rpartition(".")
    cls: Any = getattr(import_module(module), name)
    texts = documented(cls)
    # runtime.Consumer also takes the fields of its settings one by one.
    elsewhere = {field.name for field in dataclasses.fields(RuntimeSettings)} if name == "Consumer" else set()
    rows = [
        (parameter.name, default_of(parameter, cls), unit_of(parameter.name), texts.get(parameter.name, ""))
        for parameter in inspect.signature(cls).parameters.values()
        if not parameter.name.startswith("_") and parameter.name not in elsewhere
    ]
    return cls, rows


def settings_page() -> str:
    """Return docs/settings.md."""
    lines = ["# Settings", "", HEAD]
    lines += [
        (
            "Units are in the names: `_s` seconds, `_ms` milliseconds, `_bytes` bytes. A setting that cannot work is "
            "refused with a `ConfigurationError` when the object is made, before anything is sent. URLs, environment "
            "variables and `conquiet.toml`: [the command line](cli.md#what-holds-for-every-command)."
        ),
        "",
    ]
    for part, places in SETTINGS.items():
        lines += [f"## {part}", ""]
        for place in places:
            cls, rows = settings_of(place)
            lines += [f"### {cls.__name__}", "", f"`{place}`: {cell(api_docs.summary(cls))}", ""]
            lines += ["| setting | default | unit | meaning |", "|---|---|---|---|"]
            lines += [f"| `{name}` | {default} | {unit} | {cell(text)} |" for name, default, unit, text in rows]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


# ------------------------------------------------------------------ errors
def public_errors() -> list[tuple[str, str, type[BaseException]]]:
    """Return module, name and class of every public error and of what handlers may raise."""
    return [
        (module, name, value)
        for module, name, value in api_docs.public_objects()
        if inspect.isclass(value) and issubclass(value, BaseException)
    ]


def remedies() -> dict[str, str]:
    """Return what to do about each error."""
    return {name: str(text) for name, text in tomllib.loads(REMEDIES.read_text(encoding="utf-8")).items()}


def errors_page() -> str:
    """Return docs/errors.md."""
    advice = remedies()
    lines = [
        "# Errors",
        "",
        HEAD,
        (
            "All are below `ConquietError`, except those that a handler raises itself. The text of an error names what "
            "happened, never a payload, a parameter or a password; its facts are attributes "
            "([API](api.md#conquieterrors))."
        ),
        "",
    ]
    current = ""
    for module, name, cls in public_errors():
        if module != current:
            current = module
            lines += [f"## `{module}`", "", "| error | what has happened | what to do |", "|---|---|---|"]
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base is not Exception)
        kind = f" (a {bases})" if bases else ""
        lines.append(f"| `{name}` | {cell(api_docs.summary(cls))}{kind} | {cell(advice.get(name, ''))} |")
    # A blank line before each further heading.
    text = "\n".join(lines)
    return text.replace("|\n## ", "|\n\n## ").rstrip() + "\n"


# ------------------------------------------------------------------ commands
def commands() -> Iterator[tuple[str, Any]]:
    """Yield the words and the command of every command that can be run, in the order of the help."""
    from conquiet.cli.app import app

    yield from _below("conquiet", get_command(app))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, found in command.commands.items():
        if not found.hidden:
            yield from _below(f"{words} {name}", found)


def _option_row(parameter: Any, annotation: Any) -> str:
    is_argument = not parameter.opts[0].startswith("-")
    words = (parameter.metavar or parameter.name.upper()) if is_argument else ", ".join(parameter.opts)
    value = "" if is_argument or annotation is bool else parameter.metavar or _kind(annotation)
    default = "" if callable(parameter.default) else getattr(parameter.default, "value", parameter.default)
    shown = "required" if parameter.required else "" if default in {None, "", (), False} else f"`{default}`"
    return f"| `{words}` | {value} | {shown} | {cell(getattr(parameter, 'help', '') or '')} |"


def _kind(annotation: Any) -> str:
    """Return what to write for an option: a kind of value, or the values themselves."""
    inner = [one for one in get_args(annotation) if one is not type(None)]
    if inner:
        return _kind(inner[0])
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return " \\| ".join(str(one.value) for one in annotation)
    return {"str": "text", "int": "integer", "float": "number", "Path": "path"}.get(annotation.__name__, "")


def commands_page() -> str:
    """Return docs/commands.md."""
    lines = ["# Commands", "", HEAD, "How they behave, with examples: [the command line](cli.md).", ""]
    for words, command in commands():
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        before, _, examples = help_text.partition("Examples:")
        lines += [f"## {words}", "", before.strip(), ""]
        shown = [line.strip() for line in examples.splitlines() if line.strip()]
        if shown:
            lines += ["```console", *(f"$ {line}" if _is_command(line) else line for line in shown), "```", ""]
        kinds = get_type_hints(inspect.unwrap(command.callback))
        rows = [_option_row(one, kinds.get(one.name, str)) for one in command.params if not one.hidden]
        if rows:
            lines += ["| option | value | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _is_command(line: str) -> bool:
    return line.startswith(("conquiet", "CONQUIET", "echo", "cat", "generate", "jq"))


PAGES = {"settings.md": settings_page, "errors.md": errors_page, "commands.md": commands_page}


if __name__ == "__main__":
    sys.exit(generated.main(__doc__, lambda: {DOCS / name: render() for name, render in PAGES.items()}))
