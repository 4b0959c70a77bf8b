"""The plugin is opt-in: a project that does not load it gets none of its fixtures."""

import ast
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conquiet.testing import pytest_plugin

LINE = 'pytest_plugins = ["conquiet.testing.pytest_plugin"]\n'
DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"


def fixtures_of_the_plugin() -> set[str]:
    """Return the names of the functions decorated as fixtures in the plugin's source."""
    tree = ast.parse(Path(pytest_plugin.__file__).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in functions if any("fixture" in ast.unparse(d) for d in each.decorator_list)}


def fixtures_seen_by(project: Path, *options: str) -> set[str]:
    """Return the fixtures that pytest lists in a project, with every plugin of the environment."""
    command = [sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert "tmp_path" in done.stdout, done.stdout + done.stderr
    return {line.split()[0] for line in done.stdout.splitlines() if line and line[0].isalpha()}


def test_installing_the_wheel_registers_no_pytest_plugin() -> None:
    assert [each.name for each in entry_points(group="pytest11") if each.value.startswith("conquiet")] == []


def test_a_project_without_the_line_sees_no_fixture_of_ours(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass\n")

    assert fixtures_seen_by(tmp_path) & fixtures_of_the_plugin() == set()


def test_one_line_in_conftest_turns_every_fixture_on(tmp_path: Path) -> None:
    """Also the control of the test above: that test must not find these names."""
    (tmp_path / "conftest.py").write_text(LINE)

    assert {"redis_url", "db_url", "amqp_url", "fault_proxy"} <= fixtures_of_the_plugin()
    assert fixtures_of_the_plugin() <= fixtures_seen_by(tmp_path)


def test_the_option_on_the_command_line_turns_them_on_too(tmp_path: Path) -> None:
    assert fixtures_of_the_plugin() <= fixtures_seen_by(tmp_path, "-p", "conquiet.testing.pytest_plugin")


def test_loading_the_plugin_loads_no_client_library() -> None:
    heavy = ["redis", "sqlalchemy", "pymysql", "pika", "asyncio", "conquiet.testing.shared", "ssl"]
    # pytest imports some of these on some versions: only additional modules count.
    code = (
        "import pytest, sys; before = set(sys.modules); import conquiet.testing.pytest_plugin;"
        f"print([name for name in {heavy} if name in sys.modules and name not in before])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_run_searches_for_mysql_programs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search runs the program, and a run has hundreds of tests with a database."""
    search, parametrized = Mock(return_value=[None]), Mock()
    monkeypatch.setattr(pytest_plugin, "_flavours", search)
    test: Any = Mock(fixturenames=["conquiet_mysql_flavour"], parametrize=parametrized)
    test.config.stash = pytest.Stash()

    for _ in range(3):
        pytest_plugin.pytest_generate_tests(test)

    assert (parametrized.call_count, search.call_count) == (3, 1)


@pytest.mark.parametrize("name", sorted(fixtures_of_the_plugin()))
def test_every_fixture_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENT.read_text(encoding="utf-8")
