"""The distribution: layout, names, versions, extras, and the first mistakes of a caller.

A mistake is refused before it costs a message, with what to do instead. No server is needed.
"""

import ast
import asyncio
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

import conquiet
from conquiet import (
    Consumer,
    DbSession,
    Every,
    Inbox,
    Outbox,
    OutboxRelay,
    Processor,
    QueueConsumer,
    RabbitConsumer,
    ScheduleEntry,
    Scheduler,
    SyncEmitter,
    sync_queue,
)
from conquiet.core.lifecycle import BlockingLifecycle
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError, QueueError
from conquiet.processor import Emitter, PartitionedEmitter, PartitionedProcessor
from conquiet.queue.models import QueueMessage
from conquiet.redis_transport.client import clone_async
from conquiet.transactional import ToStream, for_processor, for_rabbit, for_runtime

ROOT = Path(__file__).parents[2]


PACKAGE = ROOT / "src" / "conquiet"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def hiding(*modules: str) -> str:
    """Return code after which the given modules cannot be imported, as if their extra were not installed."""
    return (
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "def hidden(cls, name, *rest):\n"
        f"    return None if name.split('.')[0] in {modules!r} else find(name, *rest)\n"
        "PathFinder.find_spec = classmethod(hidden)\n"
    )


NOBODY = redis.asyncio.Redis(port=1)


NOWHERE = "amqp://127.0.0.1:1"


ENTRY = ScheduleEntry("ping", Every(30), "host.ping", "ops")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A database without conquiet's tables."""
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


def untyped(callee: Any) -> Any:
    """Without the types mypy would report it, but not every caller runs mypy."""
    return callee


def nothing() -> None: ...


def three(_a: object, _b: object, _c: object) -> None: ...


@pytest.mark.spec("CQ-000.1")
def test_the_distribution_and_the_package_are_called_conquiet() -> None:
    assert version("conquiet") == conquiet.__version__
    assert conquiet.__name__ == "conquiet"


@pytest.mark.spec("CQ-001.1", "CQ-001.6", "CQ-008.1", "CQ-008.11", "CQ-008.12")
def test_python_metrics_test_runner_and_coverage_gate_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["requires-python"] == ">=3.11"
    assert any(name.startswith("prometheus-client") for name in project["project"]["dependencies"])
    assert any(name.startswith("pytest>") for name in project["dependency-groups"]["dev"])
    assert any(name.startswith("coverage") for name in project["dependency-groups"]["dev"])
    assert project["tool"]["coverage"]["report"]["fail_under"] >= 90


@pytest.mark.spec("CQ-002.1", "CQ-002.4", "CQ-002.5", "CQ-009.1")
@pytest.mark.parametrize(
    ("folder", "names"),
    [
        (".", ["__init__", "config", "errors", "signals"]),
        ("metrics", ["__init__", "registry"]),
        ("queue", ["__init__", "models", "redis_streams", "consumer", "metrics"]),
    ],
)
def test_the_files_of_the_seeds_layout_are_there(folder: str, names: list[str]) -> None:
    assert {f"{name}.py" for name in names} <= {path.name for path in (PACKAGE / folder).iterdir()}


@pytest.mark.spec("CQ-002.1", "CQ-002.2", "CQ-002.3", "CQ-002.4", "CQ-002.5", "CQ-009.1")
@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("config", ["DbConfig", "QueueConfig"]),
        ("errors", ["ConquietError", "DbWriteError", "LockAcquisitionError", "QueueError"]),
        ("signals", ["install_termination_handlers"]),
        ("db.models", ["DbOperation", "DbOperationType"]),
        ("db.writer", ["DbWriter"]),
        ("db.metrics", ["observe_db_write", "observe_lock_acquisition"]),
        ("db.locking", ["make_lock_backend"]),
        ("db.locking.base", ["LockBackend"]),
        ("db.locking.strategy", ["LockStrategy"]),
        ("db.locking.advisory_mysql", ["MySQLAdvisoryLockBackend"]),
        ("db.locking.row_mysql", ["MySQLRowLockBackend"]),
        ("db.locking.table_mysql", ["MySQLTableLockBackend"]),
        ("db.locking.composite", ["CompositeLockBackend"]),
        ("queue.models", ["QueueMessage"]),
        ("queue.redis_streams", ["RedisStreamsQueue"]),
        ("queue.consumer", ["QueueConsumer"]),
        ("queue.metrics", ["observe_queue_read", "observe_queue_ack", "observe_queue_claim"]),
        ("metrics.registry", ["DB_WRITE_TOTAL", "QUEUE_MESSAGES_READ_TOTAL"]),
    ],
)
def test_each_file_of_the_layout_has_what_the_seed_puts_there(module: str, names: list[str]) -> None:
    found = vars(importlib.import_module(f"conquiet.{module}"))

    assert [name for name in names if name not in found] == []


@pytest.mark.spec("CQ-000.2", "CQ-002.6", "CQ-009.1")
@pytest.mark.parametrize(
    ("names", "hidden"),
    [
        (["DbWriter", "LockStrategy"], ["redis", "pika"]),
        (["RedisStreamsQueue", "QueueConsumer"], ["sqlalchemy", "pymysql", "pika"]),
    ],
)
def test_the_seeds_four_names_come_with_their_own_extra_alone(names: list[str], hidden: list[str]) -> None:
    done = run_python(hiding(*hidden) + f"from conquiet import {', '.join(names)}")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_whose_extra_is_missing_says_which_extra_to_install() -> None:
    done = run_python(hiding("redis") + "from conquiet import RedisStreamsQueue")

    assert "pip install 'conquiet[redis]'" in done.stderr


def test_packages_that_need_hiredis_name_the_extra_that_installs_it() -> None:
    done = run_python(
        hiding("hiredis") + "from importlib import import_module\n"
        "for package in ('queue', 'runtime', 'processor', 'scheduler', 'management'):\n"
        "    try:\n        import_module(f'conquiet.{package}').RedisAdmin\n"
        "    except ImportError as error:\n        print(package, getattr(error, 'extra', error))\n"
    )

    expected = ["queue redis", "runtime redis", "processor redis", "scheduler scheduler", "management redis"]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.spec("CQ-001.5", "CQ-008.4", "CQ-008.5")
def test_the_queue_uses_redis_py_and_each_method_has_a_test() -> None:
    """The conformance report names the test of each method; this test finds a method without one."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/queue/test_*.py"))

    assert "import redis\n" in (PACKAGE / "redis_transport" / "client.py").read_text(encoding="utf-8")
    for call in ("enqueue(", "read(", "ack(", "claim_stale(", "next(", "iter_messages(", "stop("):
        assert f".{call}" in tests, call


def imported_modules() -> set[str]:
    """Return the top-level names that the source imports, ``import_module("name")`` included."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                case ast.ImportFrom(module=str(module)):
                    found.add(module.partition(".")[0])
                case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module)), *_]):
                    found.add(module.partition(".")[0])
                case _:
                    pass
    return found


def requirements_of_all() -> set[str]:
    """Return the distributions that ``pip install conquiet[all]`` names, without versions, extras and markers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    (everything,) = extras["all"]
    names = everything.removeprefix("conquiet[").removesuffix("]").split(",")
    lines = [*project["dependencies"], *(line for name in names for line in extras[name])]
    return {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines}


READ_AS_DATA = {"tzdata"}


"""zoneinfo reads its files where the system has none."""


DRIVERS = {"aiosqlite", "asyncmy", "psycopg"}


"""SQLAlchemy imports the driver that a database URL names."""


def test_all_installs_nothing_that_no_module_imports() -> None:
    modules_of: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules_of.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    needed, imported = requirements_of_all(), imported_modules()

    unused = {name for name in needed if not modules_of.get(name, {name}) & imported}
    assert unused - READ_AS_DATA - DRIVERS == set()
    assert {"redis", "sqlalchemy", "pika", "typer"} <= needed


def test_types_ship_with_the_package() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_root_name_resolves_and_is_listed() -> None:
    for name in importlib.import_module("conquiet").__all__:
        assert getattr(conquiet, name) is not None
        assert name in dir(conquiet)


@pytest.mark.parametrize("package", ["app", "processor", "rabbit", "runtime"])
def test_the_root_exports_the_settings_and_plain_counterparts_of_its_names(package: str) -> None:
    public = set(importlib.import_module(f"conquiet.{package}").__all__)
    exported = public & set(importlib.import_module("conquiet").__all__)

    assert {f"Sync{name}" for name in exported} & public <= exported
    assert f"{package.capitalize()}Settings" in exported


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = conquiet.no_such_name  # type: ignore[attr-defined]


def test_importing_the_root_imports_no_optional_dependency() -> None:
    code = (
        "import sys, conquiet\n"
        "heavy = {'redis', 'sqlalchemy', 'pymysql', 'pika', 'typer', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_the_lock_file_names_no_host() -> None:
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")

    assert "==" in lock
    assert "://" not in lock


@pytest.mark.parametrize("handler", [nothing, three])
@pytest.mark.parametrize(
    "give",
    [
        lambda handler, _: Consumer(streams=["orders"], redis=NOBODY, handler=handler),
        lambda handler, _: Processor(NOBODY, ["orders"]).handler("pay")(handler),
        lambda handler, _: RabbitConsumer(NOWHERE, "orders", handler),
        lambda handler, engine: for_runtime(handler, engine=engine, group="billing"),
        lambda handler, engine: for_processor(handler, engine=engine, group="billing"),
        lambda handler, engine: for_rabbit(handler, engine=engine, queue="orders", key=str),
    ],
    ids=["runtime", "processor", "rabbit", "for_runtime", "for_processor", "for_rabbit"],
)
def test_a_handler_that_cannot_take_what_it_is_called_with_is_refused(
    engine: Engine, give: Callable[[Any, Engine], object], handler: Callable[..., Any]
) -> None:
    """Each message would fail: with the default policy of the processor, it would be dead-lettered."""
    with pytest.raises(ConfigurationError, match="parameters"):
        give(handler, engine)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda _: untyped(Consumer)(streams=["orders"], redis=NOBODY, handler=print, on_exhausted=nothing),
            r"on_exhausted\(message, ctx\) and cannot take that",
        ),
        (
            lambda _: untyped(Processor(NOBODY, ["orders"]).handler)(nothing),
            "event must be a non-empty string, got a function",
        ),
        (
            lambda _: untyped(PartitionedProcessor(NOBODY, "orders").handler)(nothing),
            "event must be a non-empty string, got a function",
        ),
        (lambda _: untyped(SyncEmitter(NOBODY, "orders").emit_many)([{"event": "pay"}]), "NewMessage"),
        (lambda _: untyped(Scheduler)(NOBODY, ENTRY), r"put it into \[ \]"),
        (lambda _: untyped(Scheduler)(NOBODY, [{"name": "ping"}]), "entry must be a ScheduleEntry, got a dict"),
        (lambda _: untyped(QueueConsumer)(NOBODY, {"stream": "orders"}), "must be a QueueConfig"),
        (lambda _: untyped(Inbox)(key="order_id"), "key must be a function"),
        (lambda engine: Outbox().add(engine, "ledger", {}), "must be the session"),
        (lambda engine: untyped(OutboxRelay)(engine, {"ledger": engine}), "ToStream, ToProcessor, ToRabbit"),
        (lambda engine: untyped(OutboxRelay)(engine, ["ledger"]), "ToStream, ToProcessor, ToRabbit"),
        (lambda engine: untyped(OutboxRelay)(engine, {"ledger": ToStream}), "ToStream, ToProcessor, ToRabbit"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(engine: Engine, make: Callable[[Any], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make(engine)


def test_missing_tables_are_reported_with_the_remedy(engine: Engine) -> None:
    message = QueueMessage("orders", "billing", "1-0", {})

    remedy = r"conquiet_inbox does not exist.*create_tables\(engine\).*conquiet db init"
    with pytest.raises(DbWriteError, match=remedy), DbSession(engine) as session, Inbox().once(session, message):
        pass
    with pytest.raises(DbWriteError, match="conquiet_outbox does not exist"), DbSession(engine) as session:
        Outbox().add(session, "ledger", {"cents": 1})


async def test_a_process_of_its_own_is_not_begun_inside_an_event_loop() -> None:
    with pytest.raises(LifecycleError, match=r"await RabbitConsumer\(\.\.\.\)\.run\(\)"):
        sync_queue(NOWHERE, "orders", lambda _: True)


@pytest.mark.parametrize("kind", [Emitter, PartitionedEmitter])
def test_an_emitter_in_a_second_event_loop_names_the_mistake(kind: type[Emitter]) -> None:
    """redis-py would report that the first loop is closed."""
    emitter = kind(clone_async(NOBODY), "orders")

    async def emit() -> None:
        await emitter.emit("pay")

    with pytest.raises(QueueError, match="ConnectionError"):
        asyncio.run(emit())
    with pytest.raises(LifecycleError, match="another event loop"):
        asyncio.run(emit())


def test_a_relay_without_its_table_says_so_at_every_attempt(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It retries, as when the database is unavailable, so the log must name the fault."""
    relay = OutboxRelay(engine, {"ledger": untyped(SimpleNamespace(publish=list))})
    monkeypatch.setattr(BlockingLifecycle, "sleep", lambda _life, _s: relay.stop())

    with pytest.raises(DbWriteError, match=r"conquiet_outbox does not exist.*conquiet db init"):
        relay.relay_once()
    relay.run()

    (record,) = caplog.records
    assert "the table conquiet_outbox does not exist" in record.__dict__["reason"]
