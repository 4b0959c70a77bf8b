"""Every expression in deploy/ works in a real Prometheus, and every alert fires there."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
import yaml
from prometheus_client import REGISTRY, CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector
from sqlalchemy import Engine, create_engine

from conquiet.core.backoff import Backoff
from conquiet.db import DbSession
from conquiet.errors import ConflictError, DatabaseUnavailableError, LeaseLostError, QueueError
from conquiet.metrics import registry
from conquiet.metrics.outages import OutageWatch
from conquiet.processor import JobContext, Processor, RetryPolicy
from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.queue.models import QueueMessage
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.runtime import RuntimeSettings
from conquiet.testing import free_port, wait_until, wait_until_async
from conquiet.transactional import Inbox, Outbox, OutboxRelay, create_tables
from conquiet.transactional.relay_decisions import PublishOutcome

DEPLOY = Path(__file__).parents[3] / "deploy"


class Prometheus:
    """A private Prometheus that scrapes one port every second."""

    def __init__(self, folder: Path, target: int, rules: str) -> None:
        self.port = free_port()
        (folder / "alerts.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\nscrape_configs:\n"
            f"  - {{job_name: conquiet, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
        )
        program = shutil.which("prometheus")
        assert program is not None, "install it: scripts/setup.sh servers"
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        try:
            return bool(self.query('up{job="conquiet"} == 1'))
        except urllib.error.HTTPError as error:  # 503 while it starts
            error.close()
            return False
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def rules() -> dict[str, str]:
    """Return the alerts and their expressions."""
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return {rule["alert"]: rule["expr"] for group in loaded["groups"] for rule in group["rules"]}


def panels() -> list[tuple[str, str]]:
    """Return the panels of all dashboards and their expressions."""
    boards = [json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))]
    assert len(boards) == 2
    return [
        (f"{board['title']}: {panel['title']}", target["expr"])
        for board in boards
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def empty_panels(prometheus: Prometheus) -> list[tuple[str, str]]:
    """Return the panels that have no data."""
    return [(title, expression) for title, expression in panels() if not prometheus.query(expression)]


def keda() -> list[str]:
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes" / "keda.yml").read_text())
    triggers = [trigger for one in loaded for trigger in one["spec"]["triggers"]]
    return [trigger["metadata"]["query"] for trigger in triggers if trigger["type"] == "prometheus"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    place = f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}"
    made = create_engine(place, connect_args={"timeout": 0.05})  # of the wait for the other writer
    create_tables(made)
    yield made
    made.dispose()


class OwnSeries(Collector):
    """The series of this test: the series of all earlier tests of the process would take longer than a scrape may."""

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [
                one for one in metric.samples if not any(value.startswith("test-") for value in one.labels.values())
            ]
            yield metric


class Target:
    """Takes everything but poison."""

    def publish(self, messages: Sequence[Any]) -> Any:
        return [
            (PublishOutcome.REFUSED, "no") if b"poison" in one.payload else (PublishOutcome.PUBLISHED, "")
            for one in messages
        ]


async def make_trouble(client: Any, stream: str, engine: Engine, amqp_url: str) -> BacklogSampler:
    """Bring about what the alerts are for and what the panels show, with real parts."""
    await _lose_claim_and_release(client, stream)
    await _consume_from_rabbit(amqp_url)
    old_ms = (client.time()[0] - 3_600) * 1000
    client.delete(stream)
    client.xgroup_create(stream, "shop", "0-0", mkstream=True)
    for number in range(1_100):
        client.xadd(stream, {"data": "{}"}, id=f"{old_ms + number}-0")
    sampler = BacklogSampler(stream, "test")
    sampler.next_at = 0.0
    sampler.sample(client)
    _conflicts_and_outbox(engine, stream)
    OutageWatch("Redis", "nothing is read").failed(QueueError("away"), address="10.0.0.7:6379")
    return sampler


async def _lose_claim_and_release(client: Any, stream: str) -> None:
    """A dead letter; a message that lost its lease and is claimed back; a message released during an outage."""
    runtime = RuntimeSettings(claim_idle_ms=1_000, outage=Backoff(base_s=0.05, cap_s=0.1))
    processor = Processor(client, [stream], group="shop", concurrency=1, runtime=runtime)

    def counted(name: str) -> bool:
        return bool(REGISTRY.get_sample_value(name, {"stream": stream}))

    @processor.handler("fails", retry=RetryPolicy.fixed(0.01, max_attempts=2))
    async def fail(_ctx: JobContext) -> None:
        raise KeyError

    @processor.handler("stolen")
    async def be_stolen_from(ctx: JobContext) -> None:
        if counted("conquiet_runtime_leases_lost_total"):
            return
        client.xclaim(stream, "shop", "another", 0, [ctx.delivery.id])
        with pytest.raises(LeaseLostError):
            await ctx.delivery.extend()

    @processor.handler("waits")
    async def wait(_ctx: JobContext) -> None:
        if not counted("conquiet_runtime_released_total"):
            raise DatabaseUnavailableError("away")

    async with processor:
        await processor.emit("fails")
        await wait_until_async(lambda: client.xlen(f"{{{stream}}}:dead") == 1)
        await processor.emit("stolen")
        await wait_until_async(lambda: counted("conquiet_runtime_claimed_total"))
        await processor.emit("waits")
        await wait_until_async(lambda: counted("conquiet_runtime_released_total"))
        await wait_until_async(lambda: counted("conquiet_runtime_handled_total"))
    await processor.close()


async def _consume_from_rabbit(amqp_url: str) -> None:
    async def syncer(_message: dict[str, Any]) -> bool:
        return True

    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("shop", durable=True)
    channel.basic_publish("", "shop", b"{}")
    connection.close()
    async with RabbitConsumer(
        amqp_url, "shop", syncer, schemas=SchemaRegistry(built_in=False).register_default()
    ) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)


def _conflicts_and_outbox(engine: Engine, stream: str) -> None:
    inbox = Inbox()
    for number in range(8):
        message = QueueMessage(stream, "shop", f"{number}-0", {})
        with (
            DbSession(engine) as first,
            inbox.once(first, message),
            pytest.raises(ConflictError),
            DbSession(engine) as second,
            inbox.once(second, message),
        ):
            pytest.fail("SQLite has one writer")
    for name in ("good", "poison"):
        with DbSession(engine) as session:
            Outbox().add(session, "ledger", {"name": name})
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = '2020-01-01 00:00:00.000'")
    with OutboxRelay(engine, {"ledger": Target()}, max_attempts=1) as relay:
        relay.relay_once()


async def test_every_alert_fires_and_every_panel_has_data(
    redis_url: str, amqp_url: str, tmp_path: Path, engine: Engine
) -> None:
    client = redis.Redis.from_url(redis_url)
    stream = "shop"
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    own = CollectorRegistry()
    own.register(OwnSeries())
    server, thread = start_http_server(0, "127.0.0.1", registry=own)
    prometheus = Prometheus(tmp_path, server.server_port, re.sub(r"for: \w+", "for: 0s", text))
    watch = OutageWatch("Redis", "nothing is read")
    # Earlier tests of this process have counted: to this Prometheus that is new, and the alert is right to fire.
    for counted in (
        registry.SERVER_FAILED_ATTEMPTS_TOTAL,
        registry.RUNTIME_LEASES_LOST_TOTAL,
        registry.INBOX_MESSAGES_TOTAL,
    ):
        counted.clear()
    try:
        wait_until(prometheus.is_up)
        assert prometheus.firing() <= {"ConquietNoWorker"}, "nothing is wrong yet"
        await make_trouble(client, stream, engine, amqp_url)
        expected = set(rules()) - {"ConquietNoWorker"}
        await wait_until_async(lambda: expected <= prometheus.firing(), message=lambda: str(prometheus.firing()))
        assert [name for name, expression in rules().items() if not prometheus.query(expression)] == [
            "ConquietNoWorker"
        ]
        # A rate needs two scrapes.
        await wait_until_async(lambda: not empty_panels(prometheus), message=lambda: str(empty_panels(prometheus)))
        assert all(prometheus.query(expression) for expression in keda())

        server.shutdown()
        server.server_close()
        await wait_until_async(lambda: "ConquietNoWorker" in prometheus.firing())
    finally:
        watch.close()
        prometheus.stop()
        thread.join(10)
        client.delete(stream)
        client.close()


def test_expressions_name_metrics_that_exist() -> None:
    declared = {one._name for one in vars(registry).values() if hasattr(one, "_labelnames")}
    expressions = [*rules().values(), *(expression for _, expression in panels()), *keda()]

    used = {name for expression in expressions for name in re.findall(r"conquiet_\w+", expression)}

    assert {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used} <= declared


def test_deployment_files_are_well_formed_and_name_existing_files() -> None:
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            assert (DEPLOY / volume.split(":")[0]).exists(), volume
    kinds = [one["kind"] for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yml").read_text())]
    assert kinds == ["Deployment", "PodDisruptionBudget", "Job"]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        assert "ExecStart=" in unit.read_text()
    options = set(re.findall(r"--[a-z-]+", "".join(path.read_text() for path in DEPLOY.rglob("*.[ys]*"))))
    command = Path(sys.executable).with_name("conquiet")
    help_text = subprocess.run([command, "worker", "--help"], capture_output=True, text=True, check=True).stdout
    known = {
        "--concurrency",
        "--grace-s",
        "--host",
        "--health-port",
        "--metrics-port",
        "--log-format",
        "--only",
        "--processes",
    }
    assert {option for option in known if option not in help_text} == set()
    assert known <= options | {"--processes"}
