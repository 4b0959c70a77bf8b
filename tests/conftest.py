"""Fixtures and hooks of all tests: the servers, the report of proved rules, the groups of pytest-xdist.

``--spec-report=FILE`` writes ``{rule id: [tests]}`` for the ``spec`` markers of tests that passed. A test that runs
with several parameters proves its rules only if all of them passed.

Under pytest-xdist (``make test``) each process starts its own servers. RabbitMQ takes ten seconds and a hundred
megabytes, so all tests that need it run in one process; a Redis Cluster takes six servers and three seconds.
"""

import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import socket
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import pytest
from hypothesis import HealthCheck, settings

import conquiet
from conquiet.metrics import outages

if TYPE_CHECKING:
    from conquiet.testing.rabbitmq import RabbitMQServer


def free_memory() -> int:
    """Return the bytes that new processes can have; 0 if the system does not report it."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


# No deadline per example: on a busy machine it would fail for being slow, and speed is not what these tests check.
settings.register_profile(
    "conquiet",
    deadline=None,
    max_examples=1_000 if os.environ.get("CONQUIET_TORTURE") else 25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("conquiet")

# PyMySQL reads the machine's certificate authorities for every connection: 30 ms of CPU, thousands of times. The
# servers of the tests are private, and a test of TLS names the authority that it means.
os.environ["SSL_CERT_FILE"] = os.devnull

# RabbitMQ waits for the disk with every message, ten times as long while other tests write. So the servers keep their
# data in memory if there is space for the data of a whole run. Not in a torture: its results are published, and meant
# for servers with a disk.
MEMORY, ROOM = Path("/dev/shm"), 6 << 30
has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM and free_memory() > 2 * ROOM
if has_room and os.environ.get("CONQUIET_TORTURE") != "1":
    os.environ.setdefault("CONQUIET_TEST_DATA_DIR", str(MEMORY))

pytest_plugins = ["conquiet.testing.pytest_plugin"]


@pytest.fixture(autouse=True)
def log_format_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test runs in this process sets it for all that follow."""
    monkeypatch.setenv("CONQUIET_LOG_FORMAT", "")


@pytest.fixture(autouse=True)
def outages_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage that an earlier test left open, of any address, would hide one without an address."""
    monkeypatch.setattr(outages, "_OUTAGES", outages._Outages())


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a loopback port that refuses connections, and that no server of another test can take meanwhile."""
    with socket.socket() as held:  # bound without SO_REUSEADDR, and never listening
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


UNMEASURED = tuple(
    Path(__file__).parent / folder for folder in ("invariants", "simulation", "unit/repository", "unit/scripts")
)
"""Storms and tests of documents and scripts. Other tests measure what they run of the package, and a program that is
measured takes almost twice its processor time."""
RABBIT_FIXTURES = {"rabbitmq_server", "amqp_url", "private_rabbitmq"}
CLUSTER_FIXTURES = {"redis_cluster", "private_redis_cluster"}
SPEC = "spec"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spec-report", type=Path, default=None, help="write the rules proved by passing tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background of a script starts with SIGINT ignored, and so would every process that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    path: Path | None = config.getoption("--spec-report")
    # The workers of xdist run tests and report to the controller, which writes the file.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SpecReport(path))


@pytest.fixture
def rabbit_release(rabbitmq_server: "RabbitMQServer") -> tuple[int, int]:
    """Return the broker's release, such as ``(3, 10)``: the meaning of a delivery limit depends on it."""
    major, minor = rabbitmq_server.api("GET", "/api/overview")["rabbitmq_version"].split(".")[:2]
    return int(major), int(minor)


@pytest.fixture
def no_delivery_limit(rabbit_release: tuple[int, int]) -> dict[str, int]:
    """Return the arguments of a quorum queue without a delivery limit: from 4.0 on there is one by default."""
    return {"x-delivery-limit": -1} if rabbit_release >= (4, 0) else {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the package measured, and collect the tests unmeasured: that would take each process 10 s more."""
    measuring = coverage.Coverage.current()
    if measuring is None:
        return (yield)
    for module in pkgutil.walk_packages(conquiet.__path__, "conquiet."):
        # Django's part of contrib needs settings, and a __main__ would run.
        if not module.name.startswith("conquiet.contrib.") and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Properties travel with a test's report, markers do not.
        item.user_properties.extend((SPEC, rule) for marker in item.iter_markers(SPEC) for rule in marker.args)
        if RABBIT_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("rabbitmq"))
        elif CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("redis-cluster"))


def pytest_fixture_setup(fixturedef: "pytest.FixtureDef[object]", request: pytest.FixtureRequest) -> None:
    """Refuse a test that asks for RabbitMQ outside its group: each process of xdist would start a broker for it."""
    if fixturedef.argname in RABBIT_FIXTURES and fixturedef.scope == "function":
        groups = [marker.args for marker in request.node.iter_markers("xdist_group")]
        assert ("rabbitmq",) in groups, f"{request.node.nodeid}: mark it with xdist_group('rabbitmq')"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    measuring = coverage.Coverage.current()
    if measuring is None or not any(map(item.path.is_relative_to, UNMEASURED)):
        return (yield)
    measuring.stop()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):  # for the processes that it starts
                patch.delenv(name, raising=False)
            return (yield)
    finally:
        measuring.start()


class SpecReport:
    """Collect the proved rules and write them at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims: dict[str, set[str]] = defaultdict(set)
        self._failed: set[str] = set()
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _name(report.nodeid)
        for key, value in report.user_properties:
            if key == SPEC:
                self._claims[str(value)].add(test)
        if not report.passed:
            self._failed.add(test)
        elif report.when == "call":
            self._passed.add(test)

    def pytest_sessionfinish(self) -> None:
        proved = self._passed - self._failed
        report = {rule: sorted(tests & proved) for rule, tests in sorted(self._claims.items()) if tests & proved}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _name(nodeid: str) -> str:
    """Return the test without its parameters and without the group that xdist appends."""
    return nodeid.split("[", 1)[0].split("@", 1)[0]
