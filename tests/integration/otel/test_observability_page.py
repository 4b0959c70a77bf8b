"""The code on the page docs/observability.md works."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conquiet.core.log import FactLogger
from conquiet.otel import uninstrument

PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CANARY = "jane@example.org"
PROGRAM = Path(__file__).with_name("sentry_program.py")


def run(marker: str) -> dict[str, Any]:
    """Run the block with this text in it."""
    (block,) = [block for block in BLOCKS if marker in block]
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    return namespace


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger; it is restored afterwards."""
    found = logging.getLogger()
    handlers, level = found.handlers[:], found.level
    yield found
    found.handlers[:], found.level = handlers, level


@pytest.mark.parametrize("marker", ["JsonFormatter", "structlog.stdlib"])
def test_json_by_us_and_by_structlog_has_text_and_fields(root: logging.Logger, marker: str) -> None:
    root.handlers.clear()  # as in a fresh program
    made = run(marker)
    output = io.StringIO()
    made["handler"].setStream(output)

    FactLogger("conquiet.x").warning("handler of %(event_name)s failed", event_name="paid", attempt=2)

    line = json.loads(output.getvalue())
    assert "handler of paid failed [attempt=2]" in {line.get("message"), line.get("event")}
    assert (line["event_name"], line["attempt"], line["level"]) == ("paid", 2, "warning")


def test_instrumenting_is_one_call() -> None:
    assert run("instrument()")["instrument"]
    uninstrument()


def test_sentry_gets_event_id_and_attempt_without_payload(redis_url: str, key_prefix: str) -> None:
    (block,) = [block for block in BLOCKS if "sentry_sdk.init" in block]
    arguments = json.dumps({"redis_url": redis_url, "stream": f"{key_prefix}orders", "block": block, "canary": CANARY})

    program = subprocess.run([sys.executable, PROGRAM], input=arguments, stdout=subprocess.PIPE, text=True, check=True)

    message_id, reports = program.stdout.split("\n", 1)
    assert '"conquiet.event":"paid"' in reports.replace(": ", ":")
    assert message_id in reports
    assert "ValueError" in reports
    assert CANARY not in reports
