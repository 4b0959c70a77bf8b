"""One call gives the text and the extra fields."""

import gc
import json
import logging
import multiprocessing
import os
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import conquiet
from conquiet.core import log
from conquiet.core.functions import call_in_thread
from conquiet.core.log import FactLogger, describe_error
from conquiet.errors import QueueError

CANARY = "jane@example.org"
logger = FactLogger("conquiet.test")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise error
        raise error from cause
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_facts_are_in_the_text_and_in_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    logger.warning("group %(group)s is gone", group="billing", stream="orders", attempt=2, absent=None, empty="")

    (record,) = caplog.records
    assert record.getMessage() == "group billing is gone [stream=orders attempt=2]"
    assert (vars(record)["group"], vars(record)["attempt"]) == ("billing", 2)
    assert "absent" not in vars(record)
    assert record.funcName == "test_facts_are_in_the_text_and_in_the_fields"


def test_the_template_is_the_same_for_all_values(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b"):
        logger.warning("group %(group)s is gone", group=name, stream=name)

    assert len({record.msg for record in caplog.records}) == 1


def test_text_from_elsewhere_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    logger.warning("message %(message_id)s failed", message_id="1\nERROR forged", other="100%s" * 500)

    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 1_200


def test_a_failure_shows_class_line_and_frames_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    logger.failure(logging.WARNING, "handler failed", raised(KeyError(CANARY)), message_id="1-0")

    (record,) = caplog.records
    text = record.getMessage()
    assert re.match(r"handler failed: KeyError at \S*test_log\.py:\d+ in raised \[message_id=1-0", text)
    assert CANARY not in str(vars(record)) + caplog.text
    assert record.exc_info is None


def test_an_error_of_our_own_shows_its_text_without_credentials() -> None:
    ours = QueueError("no connection to redis://user:s3cret@host:6379")

    for error in (raised(ours), raised(ValueError(CANARY), ours)):
        described = describe_error(error)
        assert described["reason"] == "no connection to redis://***@host:6379"
        assert CANARY not in str(described)


def test_a_whole_traceback_needs_to_be_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = raised(KeyError(CANARY))

    logger.failure(logging.WARNING, "failed", error, tracebacks=True)
    monkeypatch.setattr(log, "_tracebacks", True)  # as by CONQUIET_DEBUG
    logger.failure(logging.WARNING, "failed", error)

    assert caplog.text.count(f"KeyError: '{CANARY}'") == 2


def test_a_named_fact_that_is_missing_is_a_dash(caplog: pytest.LogCaptureFixture) -> None:
    logger.warning("attempt %(attempt)s of %(max_attempts)s", attempt=1, max_attempts=None)

    assert caplog.messages == ["attempt 1 of -"]


def test_a_later_record_of_a_call_equals_one_that_logging_builds(caplog: pytest.LogCaptureFixture) -> None:
    """The fields of a call are kept for its next line: time, thread, level name and facts are of each line."""
    before = vars(logging.makeLogRecord({})).keys()

    def line(number: int) -> None:
        logger.failure(
            logging.WARNING, "line %(number)s", raised(KeyError(CANARY)), tracebacks=number > 1, number=number
        )

    line(1)
    thread = threading.Thread(target=line, args=(2,), name="another")
    thread.start()
    thread.join()

    first, second = (dict(vars(record)) for record in caplog.records)
    assert list(first) == list(second)
    assert first.keys() - before == {"number", "error", "place", "message"}
    ours = ("created", "msecs", "relativeCreated", "thread", "threadName", "args", "exc_info", "exc_text", "message")
    differing = {name for name in first if first[name] != second[name]}
    assert differing <= {*ours, "number"}
    assert second["number"] == 2
    assert second["threadName"] == "another"
    assert second["created"] >= first["created"]
    assert second["relativeCreated"] - first["relativeCreated"] == pytest.approx(
        (second["created"] - first["created"]) * 1000, abs=0.01
    )
    assert second["exc_info"][1].args == (CANARY,)
    assert first["exc_info"] is None


def test_a_line_of_a_forked_process_names_that_process(caplog: pytest.LogCaptureFixture) -> None:
    """The fields of a call are kept, and a child inherits them from its parent."""

    def line() -> int:
        logger.warning("line", group="billing")
        found = caplog.records[-1].process
        assert found is not None
        return found

    def send_line() -> None:
        sender.send((line(), os.getpid(), caplog.records[-1].processName))

    assert line() == os.getpid()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=send_line, name="another")
    child.start()
    child.join()

    assert receiver.recv() == (child.pid, child.pid, "another")


def test_lines_of_two_loggers_at_one_place_keep_their_names(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("conquiet.a", "conquiet.b"):
        each = FactLogger(name)
        for _ in range(2):
            each.warning("line", group="billing")

    assert [record.name for record in caplog.records] == ["conquiet.a", "conquiet.a", "conquiet.b", "conquiet.b"]


def test_a_later_line_keeps_nothing_of_an_earlier_one() -> None:
    class Kept(dict[str, int]):
        pass

    class HandlerError(Exception):
        pass

    logging.getLogger("conquiet.alone").propagate = False
    alone = FactLogger("conquiet.alone")
    value, error = Kept(a=1), raised(HandlerError())
    alive = weakref.ref(value), weakref.ref(error)
    for _ in range(2):
        alone.failure(logging.ERROR, "line", error, tracebacks=True, value=value)
    del value, error
    gc.collect()  # the frame of raised() refers to the error

    assert [each() for each in alive] == [None, None]


def test_records_of_the_applications_factory_are_used(caplog: pytest.LogCaptureFixture) -> None:
    class Record(logging.LogRecord):
        pass

    def line() -> None:
        logger.warning("line", group="billing")

    line()
    plain = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        line()
    finally:
        logging.setLogRecordFactory(plain)
    line()

    assert [type(record) for record in caplog.records] == [logging.LogRecord, Record, logging.LogRecord]


def test_modules_log_through_the_helper() -> None:
    """Facts in ``extra`` alone are invisible under Python's own format. See CONTRIBUTING, "Log lines"."""
    package = Path(conquiet.__file__).parent
    own = {"core/log.py", "signals.py", "metrics/safety.py", "app/invocation.py", "processor/context.py"}

    direct = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "logging.getLogger(" in path.read_text(encoding="utf-8")
    }

    assert direct - own == set(), "use conquiet.core.log.FactLogger"


def test_frames_begin_with_the_application_and_end_where_it_was_left() -> None:
    """In a thread the first frames belong to the pool and to conquiet's adapters: the same for every message."""

    def parse() -> None:
        json.loads("{")

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(call_in_thread, "the handler", parse).exception()

    described = describe_error(error)
    assert re.fullmatch(r".*test_log\.py:\d+ in parse", described["place"])
    assert described["frames"].split(" > ")[0].endswith(" parse")
    assert "thread.py" not in described["frames"]
    assert "functions.py" not in described["frames"]


def test_an_error_of_the_applications_statement_names_the_table_only() -> None:
    from sqlalchemy import create_engine, text

    import conquiet.db.errors  # noqa: F401 - describes errors of SQLAlchemy

    canary = "jane@example.org"
    engine = create_engine("sqlite://")

    def book() -> None:
        with engine.connect() as connection:
            connection.execute(text("INSERT INTO ledger (mail) VALUES (:mail)"), {"mail": canary})

    with pytest.raises(Exception, match="no such table") as caught:
        book()
    engine.dispose()

    described = describe_error(caught.value)
    assert "there is no table ledger" in described["reason"]
    assert re.fullmatch(r".*test_log\.py:\d+ in book", described["place"])
    assert " book > sqlalchemy/" in described["frames"], "the application, and what it called"
    assert len(described["frames"].split(" > ")) <= 6
    assert canary not in str(described)
