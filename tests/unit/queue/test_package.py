"""The queue package alone: without the database's dependencies, and without a server."""

import dataclasses
import importlib.util
import inspect
import pickle
import typing
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import REGISTRY
from tests.hidden_modules import run_hiding

import conquiet
from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, MalformedMessageError, PayloadError, QueueError
from conquiet.metrics import registry
from conquiet.queue import QueueConsumer, QueueMessage, RedisStreamsQueue
from conquiet.queue import metrics as queue_metrics

PACKAGE = Path(conquiet.__file__).parent


@pytest.mark.spec("RS-000.2", "QC-001.17", "CQ-000.2", "CQ-006.1")
def test_the_queue_imports_without_the_databases_dependencies() -> None:
    ran = run_hiding(
        "sqlalchemy",
        "pymysql",
        "pika",
        "nacl",
        "typer",
        code="import conquiet.queue as q, sys; print('conquiet.db' in sys.modules, q.QueueConsumer.run.__name__)",
    )

    assert ran.stdout.split() == ["False", "run"], ran.stderr


def test_without_redis_the_package_names_the_extra() -> None:
    ran = run_hiding(
        "redis",
        code="import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'redis' else find(name, package)\n"
        "import conquiet.core.extras as e; e.find_spec = u.find_spec\n"
        "import conquiet.queue",
    )

    assert "pip install 'conquiet[redis]'" in ran.stderr


@pytest.mark.spec("CQ-000.2", "CQ-006.1", "RS-000.2")
def test_no_module_of_the_queue_imports_the_database_at_its_top() -> None:
    for path in (PACKAGE / "queue").glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not line.startswith(("from conquiet.db", "import sqlalchemy", "from sqlalchemy")), path


@pytest.mark.spec("CQ-006.2")
def test_a_message_is_a_dataclass_with_the_seeds_fields() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(QueueMessage)}

    assert list(fields) == ["stream", "group", "id", "payload", "delivery_count"]
    assert typing.get_type_hints(QueueMessage)["payload"] == dict[str, Any]
    assert "secret" not in repr(QueueMessage("s", "g", "1-1", {"a": "secret"}))


@pytest.mark.spec("CQ-006.24", "CQ-006.25", "CQ-006.26", "CQ-007.3")
def test_the_observers_count_into_the_metrics_of_the_registry() -> None:
    labels = {"stream": "observed by hand"}
    queue_metrics.observe_queue_read("observed by hand", 3, 0.5)
    queue_metrics.observe_queue_ack("observed by hand")
    queue_metrics.observe_queue_claim("observed by hand", 2)

    names = ("messages_read_total", "messages_ack_total", "messages_claimed_total", "read_latency_seconds_sum")
    assert [REGISTRY.get_sample_value(f"conquiet_queue_{name}", labels) for name in names] == [3, 1, 2, 0.5]
    assert queue_metrics._metrics("observed by hand")["read"] is registry.QUEUE_MESSAGES_READ_TOTAL.labels(
        "observed by hand"
    )


@pytest.mark.spec("CQ-006.24", "CQ-006.25", "CQ-006.26")
def test_the_observers_have_the_seeds_signatures() -> None:
    def arguments(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert arguments(queue_metrics.observe_queue_read) == ["stream", "count", "latency_s"]
    assert arguments(queue_metrics.observe_queue_ack) == ["stream"]
    assert arguments(queue_metrics.observe_queue_claim) == ["stream", "claimed_count"]


@pytest.mark.spec("RS-007.6")
def test_no_observer_raises_whatever_it_is_given() -> None:
    bad: Any = object()

    queue_metrics.prepare_queue_metrics(bad)
    queue_metrics.observe_queue_read("s", bad, bad)
    queue_metrics.count_queue("s", "acked", bad)
    queue_metrics.observe_queue_claim("s", -1)
    queue_metrics.count_queue("s", "malformed", bad)
    queue_metrics.count_queue("s", "no such counter")
    queue_metrics.observe_queue_ack([])  # type: ignore[arg-type]


@pytest.mark.spec("QC-001.7", "QC-001.2", "QC-011.1")
def test_the_runner_takes_its_arguments_as_keywords_only() -> None:
    parameters = inspect.signature(QueueConsumer.run).parameters

    assert parameters["handler"].kind is parameters["engine"].kind is inspect.Parameter.KEYWORD_ONLY
    assert [name for name, one in parameters.items() if one.default is inspect.Parameter.empty] == [
        "self", "handler", "engine",
    ]  # fmt: skip


@pytest.mark.spec("QC-006.1", "QC-007.1", "QC-008.1", "RS-006.15", "RS-006.20", "RS-006.24", "QC-010.11")
def test_the_consumers_methods_have_the_seeds_signatures() -> None:
    def signature(name: str) -> dict[str, Any]:
        found = inspect.signature(getattr(QueueConsumer, name)).parameters
        return {key: one.default for key, one in found.items() if key != "self"}

    assert signature("next") == {"block_ms": None}
    assert signature("iter_messages") == {}
    assert list(signature("ack")) == ["msg"]
    assert signature("claim_stale") == {"min_idle_ms": None, "count": 10}
    assert signature("stop") == {}


@pytest.mark.spec("RS-004.2", "QC-004.4", "QC-006.6", "CQ-006.40")
@pytest.mark.parametrize("count", [2, 3, 1_000])
def test_a_read_count_above_one_is_refused_before_any_io(count: int) -> None:
    nowhere = redis.Redis(port=1)

    with pytest.raises(ConfigurationError, match="max_read_count must be 1"):
        QueueConsumer(nowhere, QueueConfig("s", "g", "c", max_read_count=count))


@pytest.mark.spec("CQ-006.33", "QC-005.6")
def test_signal_handlers_are_off_unless_asked_for() -> None:
    parameter = inspect.signature(QueueConsumer.__init__).parameters["enable_signal_handlers"]

    assert parameter.default is False
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_an_unreachable_server_is_an_error_without_doubt() -> None:
    with pytest.raises(QueueError, match="was not sent") as caught:
        RedisStreamsQueue(redis.Redis(port=1), QueueConfig("s", "g", "c"))

    assert not caught.value.in_doubt
    assert caught.value.command == "XGROUP CREATE"


def test_the_packages_errors_survive_pickling() -> None:
    for error in (
        QueueError("x", stream="s", in_doubt=True),
        PayloadError("x", reason="r"),
        MalformedMessageError("x", message_id="1-1", reason="r"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert vars(again) == vars(error)
        assert str(again) == "x"


def test_the_root_exports_the_packages_entry_points() -> None:
    assert conquiet.QueueConsumer is QueueConsumer
    assert conquiet.RedisStreamsQueue is RedisStreamsQueue
    assert conquiet.QueueMessage is QueueMessage
    assert importlib.util.find_spec("conquiet.queue") is not None
