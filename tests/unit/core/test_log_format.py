"""Log lines for people and for machines."""

import io
import json
import logging
import sys

import pytest

from conquiet.core.log import FactLogger
from conquiet.core.log_format import ConsoleFormatter, JsonFormatter, wants_colours


def record(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "booked", "name": "shop", "levelno": 30, "levelname": "WARNING", **extra})


def of_ours(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    FactLogger("conquiet.x").warning("message %(message_id)s failed", message_id="1-0", stream="orders")
    return caplog.records[-1]


def test_the_console_shows_fields_of_other_loggers_and_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    foreign = ConsoleFormatter().format(record(stream="orders\nINFO forged", n=3))
    ours = ConsoleFormatter().format(of_ours(caplog))

    assert foreign.endswith("shop: booked stream=orders\\nINFO forged n=3")
    assert ours.endswith("conquiet.x: message 1-0 failed [stream=orders]")


def test_colours_are_written_to_a_terminal_only() -> None:
    plain, coloured = ConsoleFormatter(), ConsoleFormatter(colours=True)

    assert "\033" not in plain.format(record())
    assert "\033[33mWARNING\033[0m" in coloured.format(record())
    assert not wants_colours(io.StringIO())


def test_json_has_one_object_per_line_with_all_fields(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        failed = record(exc_info=sys.exc_info(), stream="a\nb", message_id="1-0", odd=object())

    line, ours = JsonFormatter().format(failed), json.loads(JsonFormatter().format(of_ours(caplog)))

    assert "\n" not in line
    shown = json.loads(line)
    assert (shown["stream"], shown["level"], shown["logger"], shown["message"]) == ("a\nb", "warning", "shop", "booked")
    assert "KeyError" in shown["traceback"]
    assert (ours["message"], ours["stream"]) == ("message 1-0 failed [stream=orders]", "orders")
