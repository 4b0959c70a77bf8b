"""Compose file, workflow, decisions, and the links between documents.

Compose and workflow cannot run everywhere the tests do, so their content is checked instead.
"""

import itertools
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DECISIONS = ROOT / "docs" / "decisions"

TEST_URLS = (
    "CONQUIET_TEST_DB_URL",
    "CONQUIET_TEST_POSTGRES_URL",
    "CONQUIET_TEST_REDIS_URL",
    "CONQUIET_TEST_RABBIT_URL",
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
RULE_ID = re.compile(r"\b(?:QC|RS|CM|CQ|MW)-\d{3}\.\d+\b")


def load_yaml(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def decision_notes() -> list[Path]:
    return sorted(DECISIONS.glob("[0-9]*.md"))


def relative_links(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and fragment of Markdown links that point into the repository; the file is "" for this one.

    Code is left out first, except for the words of a link written as code: ``[`name`](file)`` is a link.
    """
    without_code = CODE.sub("code", text)
    for target in LINK.findall(without_code):
        path, _, fragment = target.partition("#")
        if not ABSOLUTE.match(path):
            yield path, fragment


@cache
def anchors(document: Path) -> set[str]:
    """Return the fragments of the headings of a document, as the site makes them."""
    without_blocks = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", without_blocks, re.MULTILINE)
    plain = (LINK.sub("", title.lower().replace("[", "")) for title in titles)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in plain}


@pytest.fixture
def compose() -> dict[str, Any]:
    return load_yaml(ROOT / "docker-compose.yml")


@pytest.fixture
def ci_job() -> dict[str, Any]:
    job: dict[str, Any] = load_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    return job


def commands_of(job: dict[str, Any], step_name: str) -> str:
    (step,) = [step for step in job["steps"] if step.get("name") == step_name]
    assert not step.get("continue-on-error", False), "a step that may fail is no gate"
    assert "if" not in step, "a gate runs always"
    return str(step["run"])


@pytest.mark.spec("CQ-008.6")
@pytest.mark.parametrize(
    ("service", "image"),
    [("mysql", "mysql:"), ("postgres", "postgres:"), ("redis", "redis:"), ("rabbitmq", "rabbitmq:")],
)
def test_compose_starts_each_real_server_and_waits_until_it_answers(
    compose: dict[str, Any], service: str, image: str
) -> None:
    definition = compose["services"][service]

    assert definition["image"].startswith(image)
    assert definition["healthcheck"]["test"]


def test_compose_publishes_ports_on_the_loopback_address_only(compose: dict[str, Any]) -> None:
    """MySQL's root has no password there."""
    ports = [port for service in compose["services"].values() for port in service["ports"]]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_redis_keeps_an_append_only_file(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]

    assert command[command.index("--appendonly") + 1] == "yes"


@pytest.mark.parametrize("name", TEST_URLS)
def test_compose_file_and_contributing_name_the_same_test_url_as_the_workflow(
    ci_job: dict[str, Any], name: str
) -> None:
    url = ci_job["env"][name]

    assert f"{name}={url}" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"| `{name}` | `{url}` |" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.spec("CQ-008.13")
def test_a_github_workflow_runs_on_pushes_and_pull_requests() -> None:
    workflow = load_yaml(ROOT / ".github" / "workflows" / "ci.yml")

    # YAML 1.1 reads the bare word "on" as true; GitHub does not.
    triggers: Any = workflow.get("on", workflow.get(True))  # type: ignore[call-overload]
    assert {"push", "pull_request"} <= set(triggers)
    assert triggers["push"] is triggers["pull_request"] is None, "of every branch and path"


@pytest.mark.spec("CQ-008.14")
def test_the_workflow_installs_the_pinned_dependencies_and_the_package(ci_job: dict[str, Any]) -> None:
    commands = commands_of(ci_job, "Install dependencies")

    assert "pip install --require-hashes -r requirements-dev.lock" in commands
    assert "pip install --no-deps --no-build-isolation -e ." in commands


@pytest.mark.spec("CQ-008.15")
@pytest.mark.parametrize(
    ("service", "port"), [("mysql", 3306), ("redis", 6379), ("rabbitmq", 5672), ("postgres", 5432)]
)
def test_the_workflow_starts_the_servers_as_services_and_waits_for_their_health(
    ci_job: dict[str, Any], service: str, port: int
) -> None:
    definition = ci_job["services"][service]

    assert definition["image"].startswith(f"{service}:")
    assert f"{port}:{port}" in definition["ports"]
    assert "--health-cmd" in definition["options"]
    assert any(f"@127.0.0.1:{port}/" in url or f"//127.0.0.1:{port}/" in url for url in ci_job["env"].values()), (
        "the tests are not told of it"
    )


@pytest.mark.spec("CQ-008.12", "CQ-008.14", "CQ-008.16", "CQ-008.17")
def test_the_workflow_runs_pytest_under_coverage_as_a_step_that_can_fail(ci_job: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^test:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)

    assert commands_of(ci_job, "Run pytest with coverage") == "make test"
    assert not any("continue-on-error" in place for place in (ci_job, *ci_job["steps"])), "a failure must fail the job"
    assert not any("if" in place for place in (ci_job, *ci_job["steps"])), "no step is left out"
    assert "coverage run -m pytest" in recipe
    assert "coverage report\n" in recipe  # without an option that replaces the threshold
    assert not re.search(r"pytest[^\n]* (-k|-m|--ignore\S*|--deselect\S*|tests\S*)[ =]", recipe), "all tests"
    assert not re.search(r"^\t@?-|\|\| *true", recipe, re.MULTILINE), "make would go on after a failure"


@pytest.mark.spec("CQ-008.12", "CQ-008.16", "CQ-008.17")
def test_coverage_below_ninety_percent_of_branches_is_a_failure() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    settings = tools["coverage"]

    assert settings["report"]["fail_under"] >= 90
    assert settings["run"]["branch"] is True
    assert settings["run"]["source"] == ["conquiet"]
    assert not {"omit", "include"} & {*settings["run"], *settings["report"]}, "of the whole package"
    assert tools["pytest"]["ini_options"]["testpaths"] == ["tests"]


def test_the_workflow_covers_every_python_the_package_claims(ci_job: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = {
        match[1]
        for classifier in project["classifiers"]
        if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier))
    }

    assert set(ci_job["strategy"]["matrix"]["python"]) == claimed


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_heading_or_file_of_the_repository(document: Path) -> None:
    outside_or_missing = []
    for path, fragment in relative_links(document.read_text(encoding="utf-8")):
        place = (document.parent / path).resolve() if path else document
        if not place.exists() or not place.is_relative_to(ROOT) or (fragment and fragment not in anchors(place)):
            outside_or_missing.append(f"{path}#{fragment}")

    assert outside_or_missing == []


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_a_shell_script_names_tests_that_exist(script: Path) -> None:
    named = set(re.findall(r"\btests/[\w/.]+", script.read_text(encoding="utf-8")))

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_links_are_found_in_prose_but_not_inside_code() -> None:
    """The check above would pass on anything if this did not hold."""
    text = "[a](x.md) [`b`](y.md#part) [c](https://example.org) [d](#here) `[e](z.md)`\n```\n[f](w.md)\n```\n"

    assert list(relative_links(text)) == [("x.md", ""), ("y.md", "part"), ("", "here")]


def test_the_index_of_decisions_lists_every_note_once_with_its_own_title() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{4}) \| \[(.+)\]\((.+\.md)\) \|$", index, re.MULTILINE)

    expected = [
        (
            note.name[:4],
            note.read_text(encoding="utf-8").splitlines()[0].removeprefix(f"# {note.name[:4]}. "),
            note.name,
        )
        for note in decision_notes()
    ]
    assert expected
    assert sorted(rows) == expected


def test_each_decision_has_a_number_of_its_own() -> None:
    """Gaps are allowed: a number stays with its decision, and several people may write decisions concurrently."""
    numbers = [int(note.name[:4]) for note in decision_notes()]

    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


@pytest.mark.parametrize("note", decision_notes(), ids=lambda path: path.stem)
def test_a_decision_has_all_its_parts_and_cites_rules_that_exist(note: Path) -> None:
    text = note.read_text(encoding="utf-8")
    rules = (ROOT / "docs" / "spec-rules.tsv").read_text(encoding="utf-8").splitlines()
    known = {line.partition("\t")[0] for line in rules}

    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Question", "Decision", "Why", "Rejected", "What the user notices"]
    assert re.search(r"^Status: (accepted|replaced by .+)$", text, re.MULTILINE)
    assert re.search(r"^Explains: `conquiet\.[a-z_.]+`", text, re.MULTILINE)
    cited = set(RULE_ID.findall(text))
    assert cited
    assert cited <= known


def test_the_container_runs_the_worker_without_root() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    (user,) = [line for line in lines if line.startswith("USER ")]
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]

    assert user.split()[1].split(":")[0] not in {"0", "root"}
    assert lines.index(user) < lines.index(entry)
    assert '"conquiet", "worker"' in entry


def test_the_lock_of_the_container_pins_every_extra_as_tested() -> None:
    """A requirement that it lacks is missing in the container and in the SBOM."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    pin = re.compile(r"^([a-z0-9_.-]+)==(\S+)", re.MULTILINE)
    locked = set(pin.findall((ROOT / "requirements.lock").read_text(encoding="utf-8")))
    tested = set(pin.findall((ROOT / "requirements-dev.lock").read_text(encoding="utf-8")))

    names = {re.split(r"[^a-z0-9_.-]", one, maxsplit=1)[0] for one in wanted} - {project["name"]}
    assert names - {name for name, _ in locked} == set()
    assert locked - tested == set()


def test_a_release_is_tested_compared_and_built_before_it_is_published() -> None:
    jobs = load_yaml(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    runs = [step["run"] for step in jobs["build"]["steps"] if "run" in step]

    assert [run for run in runs if run.startswith("make ")] == ["make test", "make api-check", "make release"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "password" not in str(jobs), "trusted publishing stores no token"


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_every_action_of_a_workflow_is_pinned_to_a_commit(name: str) -> None:
    """A tag can be moved to other code, which then runs with the permission to publish."""
    lines = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8").splitlines()
    used = [line.strip() for line in lines if line.strip().removeprefix("- ").startswith("uses:")]

    assert used
    assert [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []
