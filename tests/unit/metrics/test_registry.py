import importlib
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from conquiet.errors import ConfigurationError
from conquiet.metrics import registry
from conquiet.metrics.registry import get_or_create
from conquiet.metrics.safety import never_raises


@pytest.mark.spec("CQ-001.6", "CQ-005.38", "CQ-005.39", "CQ-005.40", "CQ-007.2")
@pytest.mark.parametrize(
    ("attribute", "kind", "name", "labels"),
    [
        ("DB_WRITE_TOTAL", Counter, "conquiet_db_write", ("table", "op_type", "status")),
        ("DB_WRITE_LATENCY_SECONDS", Histogram, "conquiet_db_write_latency_seconds", ("table", "op_type")),
        ("DB_LOCK_ACQUIRE_LATENCY_SECONDS", Histogram, "conquiet_db_lock_acquire_latency_seconds", ("strategy",)),
        ("QUEUE_MESSAGES_READ_TOTAL", Counter, "conquiet_queue_messages_read", ("stream",)),
        ("QUEUE_MESSAGES_ACK_TOTAL", Counter, "conquiet_queue_messages_ack", ("stream",)),
        ("QUEUE_MESSAGES_CLAIMED_TOTAL", Counter, "conquiet_queue_messages_claimed", ("stream",)),
        ("QUEUE_READ_LATENCY_SECONDS", Histogram, "conquiet_queue_read_latency_seconds", ("stream",)),
    ],
)
def test_the_seeds_metrics_exist(
    attribute: str, kind: type[Counter | Histogram], name: str, labels: tuple[str, ...]
) -> None:
    metric = getattr(registry, attribute)

    assert isinstance(metric, kind)
    described = next(iter(metric.describe()))
    assert described.name == name
    assert metric._labelnames == labels


@pytest.mark.spec("CQ-007.1")
def test_importing_the_registry_again_finds_the_same_metrics() -> None:
    before = {name: one for name, one in vars(registry).items() if isinstance(one, Counter | Gauge | Histogram)}

    again = importlib.reload(registry)

    assert len(before) >= 7
    assert all(getattr(again, name) is one for name, one in before.items())


@pytest.mark.spec("CQ-007.1")
def test_no_other_module_makes_a_metric() -> None:
    """The registry shows only metrics of modules that were imported."""
    package = Path(registry.__file__).parents[1]
    makers = re.compile(r"\b(Counter|Gauge|Histogram|Summary|Info|Enum|get_or_create)\(")  # prom.Counter( too
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "prometheus_client" in (source := path.read_text(encoding="utf-8")) and makers.search(source)
    }

    assert found == {"metrics/registry.py"}


def test_every_metric_of_ours_comes_from_the_registry_module() -> None:
    ours = {name for name in REGISTRY._names_to_collectors if name.startswith("conquiet_")}
    named = {
        name
        for metric in vars(registry).values()
        if isinstance(metric, Counter | Gauge | Histogram)
        for name in REGISTRY._collector_to_names[metric]
    }
    assert ours <= named


def test_a_name_of_another_kind_of_metric_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="conquiet_db_write_total"):
        get_or_create(Histogram, "conquiet_db_write_total", "", ["table", "op_type", "status"])
    with pytest.raises(ConfigurationError, match="other labels"):
        get_or_create(Counter, "conquiet_db_write_total", "", ["table"])


@pytest.mark.spec("RS-007.6")
def test_observing_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    @never_raises
    def observe(stream: str) -> None:
        registry.QUEUE_MESSAGES_READ_TOTAL.labels(no_such_label=stream).inc()

    with caplog.at_level(logging.DEBUG, "conquiet.metrics.registry"):
        observe("orders")

    assert [record.message for record in caplog.records] == ["metric not recorded"]


PROCESS = """
import sys
from conquiet.metrics import registry
registry.RUNTIME_IN_FLIGHT.labels("orders").set(int(sys.argv[1]))
registry.PROCESSOR_DELAYED.labels("orders").set(7)
sys.stdout.write(str(__import__("os").getpid()))
"""


def test_gauges_combine_live_processes_and_forget_dead_ones(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    first, _ = [
        int(subprocess.run([sys.executable, "-c", PROCESS, held], env=environment, stdout=-1, check=True).stdout)
        for held in ("2", "3")
    ]

    def shown() -> str:
        collected = CollectorRegistry()
        MultiProcessCollector(collected, path=str(tmp_path))  # type: ignore[no-untyped-call]
        return generate_latest(collected).decode()

    both = shown()
    mark_process_dead(first, path=str(tmp_path))  # type: ignore[no-untyped-call]

    assert 'conquiet_runtime_in_flight{stream="orders"} 5.0' in both
    assert 'conquiet_processor_delayed{stream="orders"} 7.0' in both
    assert 'conquiet_runtime_in_flight{stream="orders"} 3.0' in shown()


def test_every_gauge_says_what_several_processes_make_of_it() -> None:
    gauges = [metric for metric in vars(registry).values() if isinstance(metric, Gauge)]

    assert len(gauges) >= 6
    assert {gauge._multiprocess_mode for gauge in gauges} == {registry.SUM_OF_PROCESSES, registry.LATEST_OF_PROCESSES}
