"""The code on the page docs/observability.md works."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sentry_sdk
from sentry_sdk.transport import Transport

from conquiet.core.log import FactLogger
from conquiet.otel import uninstrument
from conquiet.processor import JobContext, Processor
from conquiet.testing import wait_until_async

PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CANARY = "jane@example.org"


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


class Recorder(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.sent.append(envelope.serialize())


async def test_sentry_gets_event_id_and_attempt_without_payload(redis_url: str, key_prefix: str) -> None:
    made = run("sentry_sdk.init")
    recorder = Recorder()
    sentry_sdk.init(
        dsn="https://key@127.0.0.1/1",
        transport=recorder,
        include_local_variables=False,
        before_send=made["without_texts"],
    )
    client = redis.Redis.from_url(redis_url)
    processor = Processor(client, [f"{key_prefix}orders"])
    processor.add_middleware(made["report_to_sentry"])

    @processor.handler("paid")
    async def handle(ctx: JobContext) -> None:
        mail = ctx.data["mail"]
        raise ValueError(mail)

    async with processor:
        emitted = await processor.emit("paid", {"mail": CANARY})
        await wait_until_async(lambda: bool(recorder.sent))
    sentry_sdk.init(default_integrations=False)  # else it keeps the log records of later tests as breadcrumbs
    client.close()

    reports = b"".join(recorder.sent).decode()
    assert '"conquiet.event":"paid"' in reports.replace(": ", ":")
    assert emitted.id in reports
    assert "ValueError" in reports
    assert CANARY not in reports
