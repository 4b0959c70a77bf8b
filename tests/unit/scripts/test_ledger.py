"""The published page matches the ledger, and the kept histories are judged as in the ledger."""

import hashlib
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import ledger
import plant
import pytest

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_ledger_says() -> None:
    page = ledger.render()
    assert ledger.PAGE.read_text(encoding="utf-8") == page, "run python scripts/ledger.py"
    assert ledger.README.read_text(encoding="utf-8") == ledger.render_readme(page), "run python scripts/ledger.py"


def test_the_kept_histories_are_judged_as_the_ledger_says() -> None:
    assert ledger.judge_again() == []


def test_the_kept_histories_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "ledger" / "histories").glob("*")}

    assert max(sizes.values()) <= 150_000
    assert sum(sizes.values()) < 3_000_000


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A ledger with one storm in it."""
    lines: list[dict[str, Any]] = [
        {"op": "header", "v": 1, "storm": "s", "promise": {"effects": "once"}},
        {"op": "enqueue", "t": 0.0, "p": 1, "id": "a"},
        {"op": "phase", "t": 1.0, "p": 1, "name": "recovery"},
        {"op": "drained", "t": 1.0, "p": 1},
        {"op": "state", "t": 1.0, "p": 1, "effects": ["a"]},
        {"op": "end", "t": 1.0, "p": 1},
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    (tmp_path / "histories").mkdir()
    (tmp_path / "histories" / "s.jsonl.xz").write_bytes(lzma.compress(text))
    line = {
        "storm": "s", "messages": 1, "faults": 0, "deliveries": 0, "again": 0, "causes": {}, "anomalies": {},
        "lines": 5, "row": {"engine": "e", "database": "d", "topology": "t"}, "history": "s.jsonl.xz", "servers": [],
        "seed": 1,
        "sha256": hashlib.sha256(text).hexdigest(), "test": "test_x.py::test_y",
    }  # fmt: skip
    (tmp_path / "s.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    shutil.copy(ROOT / "ledger" / "notes.toml", tmp_path / "notes.toml")
    return tmp_path


def change(copy: Path, **changes: Any) -> None:
    path = copy / "s.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes) + "\n", encoding="utf-8")


def test_a_result_that_the_history_does_not_support_is_found(copy: Path) -> None:
    assert ledger.judge_again(copy) == []

    change(copy, messages=1_000_000)
    assert ledger.judge_again(copy) == ["s.jsonl.xz: messages is 1, the ledger says 1000000"]

    change(copy, sha256="0")
    assert ledger.judge_again(copy) == ["s.jsonl.xz: not the history that was judged"]

    (copy / "histories" / "s.jsonl.xz").unlink()
    assert ledger.judge_again(copy) == ["s.jsonl.xz: named in the ledger, and not there"]


def test_a_failed_run_stays_in_the_table(copy: Path) -> None:
    change(copy, anomalies={"lost": 7, "leaked": 2})

    page = ledger.render(copy)

    assert "| 1 | s | e | d | t | 1 | 0 | 7 | 0 | 0 | 2 | 0 |" in page
    assert "7 lost" in page


def test_every_planted_bug_applies_to_one_place() -> None:
    """A patch that does not apply any more is a planted bug less."""
    bugs = plant.read_bugs()

    advice = "write the new text into scripts/planted_bugs/*.toml, or remove a bug whose place is gone"
    assert plant.unfit(bugs) == [], advice
    assert len(bugs) >= 40
    assert len({bug.package for bug in bugs}) >= 10


def test_a_patch_that_applies_nowhere_or_twice_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a\na\n", encoding="utf-8")
    nowhere, twice = (plant.Bug(name, "p", "x.py", text, "", "t") for name, text in (("no", "b"), ("two", "a\n")))

    assert plant.unfit([nowhere, twice], tmp_path) == ["no: found 0 times", "two: found 2 times"]
