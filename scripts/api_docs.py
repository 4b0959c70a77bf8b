"""Write docs/api.md: every public name with its signature and its promise, from the docstrings.

    python scripts/api_docs.py            write docs/api.md
    python scripts/api_docs.py --check    exit with 1 if docs/api.md is out of date

A name is public if its package lists it in ``__all__``; a module without one exports what it defines and does not
begin with an underscore. Names, kinds and defaults of parameters come from ``inspect``, so that the page shows what
``help()`` shows. Annotations come from the source (``ast``): the author's name of a type says more than its parts.
"""

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

import generated

from conquiet.errors import ConquietError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"

ROOT = "conquiet"
MODULES = [
    "conquiet.config",
    "conquiet.errors",
    "conquiet.signals",
    "conquiet.db",
    "conquiet.db.locking",
    "conquiet.queue",
    "conquiet.runtime",
    "conquiet.processor",
    "conquiet.scheduler",
    "conquiet.rabbit",
    "conquiet.transactional",
    "conquiet.otel",
    "conquiet.app",
    "conquiet.management",
    "conquiet.contrib.flask",
    "conquiet.contrib.django",
    "conquiet.dashboard",
    "conquiet.testing",
]
"""Modules that users import from, lowest layer first. ``core``, ``metrics`` and ``redis_transport`` are internal."""

_WIDTH = 110
_SHOWN_MAGIC = {"__aenter__", "__enter__", "__iter__", "__aiter__", "__call__"}
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples):$")
_ITEM = re.compile(r"^    (\*{0,2}\w+)(?: \([^)]*\))?: (.*)$")
_LISTS = {"Args", "Attributes", "Raises"}
_RULE = re.compile(r"(?<=\.) SPEC\([^)]*\)\.$", re.MULTILINE)
"""The place in a specification that ends a docstring's line: for maintainers, and in docs/conformance.md."""


# ------------------------------------------------------------------ what is public
def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted((name for name in listed if not name.startswith("__")), key=str.lower)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(own, key=str.lower)


def public_objects() -> Iterator[tuple[str, str, Any]]:
    """Yield module, name and object of everything public, each object once; under the root what only it exports."""
    seen: set[int] = set()
    for module_name in [*MODULES, ROOT]:
        module = import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield module_name, name, value


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, in the order of the source, inherited ones of ours last."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(ROOT):
            continue
        for name, value in vars(base).items():
            if name in seen or (name.startswith("_") and not (name in _SHOWN_MAGIC and value.__doc__)):
                continue
            seen.add(name)
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if inspect.isfunction(plain) or isinstance(plain, property):
                yield name, value


# ------------------------------------------------------------------ annotations from the source
@cache
def _tree(module_name: str) -> ast.Module:
    file = Path(sys.modules[module_name].__file__ or "")
    return ast.parse(file.read_text(encoding="utf-8"))


def _definition(module_name: str, qualified: str) -> ast.AST | None:
    place: ast.AST = _tree(module_name)
    for part in qualified.split("."):
        found = [
            node
            for node in ast.walk(place)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        if not found:
            return None
        place = found[-1]  # the last: overloads are before the definition
    return place


def _unquoted(node: ast.expr) -> str:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return str(text)


def annotations_of_function(function: Any) -> dict[str, str]:
    """Return the annotations of a function as they are written; the result's under ``return``."""
    node = _definition(function.__module__, function.__qualname__)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    found = {arg.arg: _unquoted(arg.annotation) for arg in every if arg is not None and arg.annotation is not None}
    return found | ({"return": _unquoted(node.returns)} if node.returns is not None else {})


def annotations_of_fields(cls: type) -> dict[str, str]:
    """Return the annotations of the fields of a class and its bases as they are written."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        node = _definition(base.__module__, base.__qualname__) if base.__module__.startswith(ROOT) else None
        for statement in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = _unquoted(statement.annotation)
    return found


@cache
def constant_text(name: str) -> str:
    """Return the string below the assignment of a public constant, from any module of the package; else nothing."""
    for path in sorted((Path(__file__).resolve().parent.parent / "src" / ROOT).rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, following in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(one, ast.Name) and one.id == name for one in targets) and isinstance(following, ast.Expr):
                return inspect.cleandoc(str(getattr(following.value, "value", "")))
    return ""


# ------------------------------------------------------------------ signatures
def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes | tuple):
        return repr(value)
    return "…"


def _parameter(parameter: inspect.Parameter, annotations: dict[str, str]) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    annotation = annotations.get(parameter.name)
    text = stars + parameter.name + (f": {annotation}" if annotation else "")
    if parameter.default is inspect.Parameter.empty:
        return text
    return f"{text} = {_default(parameter.default)}" if annotation else f"{text}={_default(parameter.default)}"


def _spelled(name: str, signature: inspect.Signature, annotations: dict[str, str], *, skip_first: bool) -> str:
    parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
    words: list[str] = []
    for index, parameter in enumerate(parameters):
        kinds_before = {each.kind for each in parameters[:index]}
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not kinds_before & {
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        }:
            words.append("*")
        words.append(_parameter(parameter, annotations))
    result = f" -> {annotations['return']}" if annotations.get("return", "None") != "None" else ""
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def constructor(cls: type) -> inspect.Signature | None:
    """Return the signature of a class; None where users call none (enums, protocols, errors, private parameters)."""
    if issubclass(cls, enum.Enum) or getattr(cls, "_is_protocol", False) or is_typeddict(cls):
        return None
    if issubclass(cls, ConquietError) or (issubclass(cls, BaseException) and "__init__" not in vars(cls)):
        return None  # raised by conquiet; Retry and Reject, which a handler raises, are not ConquietErrors
    if cls.__init__ is object.__init__ and not is_record(cls):
        return None
    try:
        signature = inspect.signature(cls)
    except ValueError:
        return None
    return None if any(name.startswith("_") for name in signature.parameters) else signature


def is_record(cls: type) -> bool:
    """Return whether the constructor takes the fields of the class."""
    return hasattr(cls, "__struct_fields__") or dataclasses.is_dataclass(cls)


def signature_of_class(name: str, cls: type) -> str:
    """Return the call that makes an object, or the class line where a user makes none."""
    signature = constructor(cls)
    if signature is None:
        bases = [base.__name__ for base in cls.__bases__ if base is not object]
        return f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    fields = annotations_of_fields(cls)
    init = inspect.getattr_static(cls, "__init__")
    if inspect.isfunction(init) and init.__module__.startswith(ROOT) and not is_record(cls):
        fields |= annotations_of_function(init)
    return _spelled(name, signature, fields | {"return": "None"}, skip_first=False)


def signature_of_function(name: str, function: Any, *, method: bool = False) -> str:
    """Return the call of a function or method, with ``async`` where it is awaited."""
    plain = inspect.unwrap(function)
    text = _spelled(name, inspect.signature(function), annotations_of_function(plain), skip_first=method)
    return f"async {text}" if inspect.iscoroutinefunction(plain) else text


# ------------------------------------------------------------------ docstrings to Markdown
def _markdown(text: str) -> str:
    text = _RULE.sub("", text)
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def summary(value: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join(_markdown(inspect.getdoc(value) or "").split("\n\n")[0].split())


def description(value: Any) -> str:
    """Return a docstring as Markdown: its sections become lists."""
    lines = _markdown(inspect.getdoc(value) or "").splitlines()
    out: list[str] = []
    section = ""
    for line in lines:
        if match := _SECTION.match(line):
            section = match[1]
            out += ["", f"**{section}**", ""]
        elif section in _LISTS and (item := _ITEM.match(line)):
            out.append(f"- `{item[1]}`: {item[2]}")
        elif section in _LISTS and line.startswith("    "):
            out.append(f"  {line.strip()}")
        elif section and line and _indent(line) == 0:
            section = ""
            out.append(line)
        elif section in {"Example", "Examples"}:
            out.append(line)  # stays indented: a code block
        elif section:
            out.append(line.strip())
        else:
            out.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _row(text: str) -> str:
    return text.replace("|", "\\|")


# ------------------------------------------------------------------ the page
def _anchor(module_name: str) -> str:
    return "#" + module_name.replace(".", "")


def _code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def _members(cls: type) -> list[str]:
    lines: list[str] = []
    if issubclass(cls, enum.Enum):
        lines += ["Members: " + ", ".join(f"`{member.name}`" for member in cls) + ".", ""]
    if is_typeddict(cls) or issubclass(cls, BaseException):
        lines += [*(f"- `{name}`: `{kind}`" for name, kind in annotations_of_fields(cls).items()), ""]
    methods = list(public_methods(cls))
    if methods:
        lines += ["| member | promise |", "|---|---|"]
    for name, value in methods:
        if isinstance(value, property):
            lines.append(f"| `{name}` | {_row(summary(value))} |")
            continue
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        call = signature_of_function(name, plain, method=not isinstance(value, staticmethod))
        one_line = re.sub(r",?\s+\)", ")", re.sub(r"\(\s+", "(", " ".join(call.split())))
        lines.append(f"| `{_row(one_line)}` | {_row(summary(value))} |")
    return [*lines, ""] if methods else lines


def _entry(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return [f"### {name}", "", *_code(signature_of_class(name, value)), description(value), "", *_members(value)]
    if callable(value):
        return [f"### {name}", "", *_code(signature_of_function(name, value)), description(value), ""]
    return [f"### {name}", "", constant_text(name), ""]


def render() -> str:
    """Return the whole page."""
    root = import_module(ROOT)
    objects = list(public_objects())
    homes = {id(value): module for module, _, value in objects}
    lines = [
        "# API",
        "",
        "Written by `make api` from the docstrings; a test fails when it is out of date. Do not edit.",
        "",
        "`from conquiet import …` works for the names of the first table. Other names are imported from their package.",
        "A name that is not on this page is internal and may change in any release.",
        "",
        "## conquiet",
        "",
        "| name | package | promise |",
        "|---|---|---|",
    ]
    for name in public_names(root):
        value = getattr(root, name)
        home = homes[id(value)]
        lines.append(f"| [`{name}`](#{name.lower()}) | [{home}]({_anchor(home)}) | {_row(summary(value))} |")
    lines.append("")
    for module_name, group in itertools.groupby(
        sorted(objects, key=lambda each: each[0] != ROOT), key=lambda each: each[0]
    ):
        if module_name != ROOT:
            lines += [f"## {module_name}", "", summary(import_module(module_name)), ""]
        for _, name, value in group:
            lines += _entry(name, value)
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(generated.main(__doc__, lambda: {PAGE: render()}))
