"""ARCHITECTURE.md, the decisions and the glossary name packages, modules and names that exist."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "conquiet"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def packages() -> set[str]:
    """Return the packages and modules directly below conquiet."""
    modules = {f"{path.stem}.py" for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    return modules | {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}


def test_the_table_of_packages_is_complete() -> None:
    table = ARCHITECTURE.partition("## Packages")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `([\w./]+)` \|", table, re.MULTILINE)) == packages()


def test_the_layers_are_those_of_the_import_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    linted = [set(re.findall(r"\w+", layer)) for layer in layers]
    existing = {name.removesuffix("/").removesuffix(".py") for name in packages()}

    drawing = ARCHITECTURE.partition("## Layers")[2].partition("A package may import")[0]
    drawn = [
        set(re.findall(r"\w+", line.strip().partition("   ")[0]))
        for line in drawing.splitlines()
        if re.search(r"\w", line) and line != "```"
    ]
    assert [names & existing for names in drawn] == [names & existing for names in linted if names & existing]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b([a-z_]+/[a-z_/]+\.py)\b", ARCHITECTURE))))
def test_every_module_that_the_architecture_names_exists(path: str) -> None:
    assert (PACKAGE / path).is_file()


def link_back(number: str) -> set[str]:
    """Return the modules that refer to a decision."""
    named = re.compile(rf"docs/decisions/(?:\d{{4}}(?:,\s+| and\s+))*{number}\b")
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("note", DECISIONS, ids=lambda path: path.stem[:4])
def test_a_decision_and_the_modules_it_explains_link_to_each_other(note: Path) -> None:
    (lines,) = re.findall(r"^Explains: (.+?)\n\n", note.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    modules = set(re.findall(r"`(conquiet[\w.]*)`", lines))

    assert modules
    assert modules == link_back(note.stem[:4])


NAMES_OF_OTHERS = {
    "messages_dlx", "pool_recycle",
    "account_id", "binlog_format", "claim_min_idle_time", "eq_ref", "IntegrityError", "min_idle_time", "order_id",
    "pool_pre_ping", "pool_reset_on_return", "process_pool", "set_policy", "ssl_disabled",
    # docs/deployment.md, docs/rabbit-from-scratch.md: systemd, and a name of the example
    "KillMode", "TimeoutStopSec", "sync_contact",
    # docs/moving-here.md: names of Celery, FastStream, RQ and taskiq
    "Depends", "FailedJobRegistry",
    "StreamSub", "TaskiqDepends", "TestRedisBroker", "acks_late", "apply_async", "autoretry_for", "delay_on_commit",
    "max_retries", "reject_on_worker_lost", "retry_backoff", "task_time_limit", "visibility_timeout",
}  # fmt: skip
"""Names of servers, libraries and examples that documents mention."""


def identifiers() -> set[str]:
    """Return every word and every file name of the code, the tests and the examples."""
    found: set[str] = set()
    for folder, endings in (("src", {".py", ".lua", ".sql"}), ("tests", {".py"}), ("examples", {".py"})):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in endings and path != Path(__file__):
                found.add(path.stem)
                found |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return found


def names_in(text: str) -> set[str]:
    """Return the class names and the names with an underscore that the prose shows in code font."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose) if "/" not in span]
    return {name for span in spans for name in re.findall(r"(?<![\w.-])([A-Z][a-z]\w+|[a-z]+_\w+)", span)}


def test_names_in_the_prose_of_documents_exist_in_the_code() -> None:
    """Metrics may be written without ``conquiet_<package>_``, and a prefix of several metrics ends in an underscore."""
    known = identifiers() | NAMES_OF_OTHERS
    tails = {word.split("_", 2)[-1] for word in known if word.startswith("conquiet_")}
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]

    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in documents
        if path.name not in {"api.md", "conformance.md", "CHANGELOG.md"}
        for name in names_in(path.read_text(encoding="utf-8")) - known - tails
        if not (name.endswith("_") and any(word.startswith(name) for word in known))
    }
    assert unknown == set()


def test_the_search_for_names_reads_code_font_only() -> None:
    assert names_in("`Consumer(block_ms=1)` and Nothing else, `a/b_c`\n```\n`Hidden`\n```\n") == {
        "Consumer",
        "block_ms",
    }


def members() -> dict[str, set[str]]:
    """Return the names that each class of the package defines, and under an empty name all functions."""
    found: dict[str, set[str]] = {"": set()}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[""].add(node.name)
            if isinstance(node, ast.ClassDef):
                own = found.setdefault(node.name, set())
                for part in node.body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        own.add(part.name)
                    elif isinstance(part, ast.AnnAssign):
                        own.add(ast.unparse(part.target))
    return found


def undefined_in(text: str) -> set[str]:
    """Return classes, ``Class.member`` and functions (with brackets) in code font that the package does not define."""
    defined = members()
    spans = set(re.findall(r"`([^`\n/]+)`", text)) - {"True", "False"}
    classes = {span for span in spans if re.fullmatch(r"(?:[a-z]+\.)?[A-Z]\w*[a-z]\w*", span)}
    attributes = {span for span in spans if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.\w+", span)}
    calls = {name for span in spans for name in re.findall(r"^(?:\w+\.)?(\w+)\(", span)}
    return (
        {span for span in classes if span.rpartition(".")[2] not in defined}
        | {span for span in attributes if span.partition(".")[2] not in defined.get(span.partition(".")[0], set())}
        | {f"{name}()" for name in calls if name not in defined[""] and name not in defined}
    )


def test_every_class_and_function_in_the_glossary_is_defined() -> None:
    assert undefined_in(GLOSSARY) == set()


def test_a_name_that_is_not_defined_is_found() -> None:
    text = "`runtime.Consumer`, `Nothing`, `QueueError.in_doubt`, `QueueError.nothing`, `backlog()`, `nothing(…)`"

    assert undefined_in(text) == {"Nothing", "QueueError.nothing", "nothing()"}


def classes() -> dict[str, list[str]]:
    """Return the places of each class of the package, private and nested ones without their underscore."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(PACKAGE)))
    return places


def test_a_class_name_is_defined_once() -> None:
    """One word, one meaning: a reader who finds a class by its name has found the right one."""
    assert {name: paths for name, paths in classes().items() if len(paths) > 1} == {}


def last_word(name: str) -> str:
    """Return the last word of a class name, which states its role."""
    return re.findall(r"[A-Z][a-z0-9]*|[A-Z]+", name)[-1] if name[0].isupper() else name


def test_the_glossary_explains_the_last_words_of_class_names() -> None:
    """A word that ends five names is part of the vocabulary. A second word for the same idea is noticed here."""
    used = Counter(last_word(name) for name in classes())
    used.pop("Error")
    table = GLOSSARY.partition("## Last words of class names")[2].partition("\n## ")[0]
    explained = set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE))

    assert {word for word, count in used.items() if count >= 5} - explained == set()
    assert {word for word in explained if used[word] < 2} == set()


def test_the_words_that_the_glossary_defines_are_used() -> None:
    """A definition of a word that nothing uses is out of date, or the code has another word for it."""
    files = [*PACKAGE.rglob("*.py"), *(path for path in (ROOT / "docs").glob("*.md") if path.stem != "glossary")]
    source = " ".join(path.read_text(encoding="utf-8") for path in files)
    code = re.sub(r"(?<=[a-z])(?=[A-Z])|[_\s]+", " ", source).lower()
    words = re.findall(r"^\*\*([^*]+?)\*\*", GLOSSARY, re.MULTILINE)
    parts = [part for word in words for part in re.findall(r"[A-Za-z][A-Za-z -]+", re.sub(r"`|\(.*\)", "", word))]

    assert len(parts) > 60
    assert [part for part in parts if part.strip().lower() not in code] == []
