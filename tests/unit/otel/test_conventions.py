"""Names match the installed conventions, and nothing is imported without the extra."""

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
from opentelemetry.semconv.attributes import error_attributes

from conquiet.core import tracing
from conquiet.errors import ConfigurationError
from conquiet.otel import conventions as names
from conquiet.otel import instrument, uninstrument


def test_attributes_are_those_of_the_messaging_conventions() -> None:
    assert names.SYSTEM == messaging.MESSAGING_SYSTEM
    assert names.DESTINATION == messaging.MESSAGING_DESTINATION_NAME
    assert names.OPERATION_NAME == messaging.MESSAGING_OPERATION_NAME
    assert names.OPERATION_TYPE == messaging.MESSAGING_OPERATION_TYPE
    assert names.MESSAGE_ID == messaging.MESSAGING_MESSAGE_ID
    assert names.GROUP == messaging.MESSAGING_CONSUMER_GROUP_NAME
    assert names.BATCH_SIZE == messaging.MESSAGING_BATCH_MESSAGE_COUNT
    assert names.ERROR_TYPE == error_attributes.ERROR_TYPE
    kinds = {one.value for one in messaging.MessagingOperationTypeValues}
    assert {names.SEND, names.PROCESS, names.SETTLE} <= kinds
    assert "rabbitmq" in {one.value for one in messaging.MessagingSystemValues}


def test_metrics_are_those_of_the_messaging_conventions() -> None:
    assert names.SENT_MESSAGES == metrics.MESSAGING_CLIENT_SENT_MESSAGES
    assert names.CONSUMED_MESSAGES == metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES
    assert names.OPERATION_DURATION == metrics.MESSAGING_CLIENT_OPERATION_DURATION
    assert names.PROCESS_DURATION == metrics.MESSAGING_PROCESS_DURATION


def test_every_package_works_where_opentelemetry_is_not_installed() -> None:
    """redis-py imports it where it is installed: so the test takes it away."""
    packages = "app, db, metrics, processor, queue, rabbit, runtime, scheduler, transactional, cli.app"
    code = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        f"for name in '{packages}'.split(', '): __import__('conquiet.' + name, fromlist=['x'])\n"
        "print([name for name in sys.modules if name.startswith('conquiet.otel')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_an_unknown_context_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="child"):
        instrument(context="sibling")


def test_instrumenting_is_undone() -> None:
    instrument()
    assert tracing.active is not None
    uninstrument()
    assert tracing.active is None


@pytest.mark.parametrize("headers", [["a"], {"a": 1}, {1: "a"}, {"a": "b" * 2_000}, {str(n): "" for n in range(99)}])
def test_headers_are_short_names_and_texts(headers: object) -> None:
    with pytest.raises(ConfigurationError, match="headers"):
        tracing.require_headers(headers)
