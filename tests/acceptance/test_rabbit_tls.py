"""Every command reaches a RabbitMQ that requires TLS and a client certificate: its URL names the files."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.acceptance.conftest import Run

from conquiet.testing import RabbitMQServer, wait_until
from conquiet.testing.certificates import make_certificate
from conquiet.testing.ports import free_port

pytestmark = pytest.mark.xdist_group("rabbitmq-tls")

SYNCER = """
def handle(message):
    print(f"got {message['number']}", flush=True)
    return True
"""


@dataclass(frozen=True)
class TlsBroker:
    """A broker and the files of its clients."""

    port: int
    api_port: int
    files: str

    def url(self, query: str) -> str:
        return f"amqps://guest:guest@localhost:{self.port}/%2F?{query}"

    @property
    def environment(self) -> dict[str, str]:
        api = f"https://guest:guest@localhost:{self.api_port}?{self.files}"
        return {"CONQUIET_RABBIT_URL": self.url(self.files), "CONQUIET_RABBIT_API_URL": api}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder = tmp_path_factory.mktemp("certificates")
    server = make_certificate(folder)
    client, key = folder / "client.crt", folder / "client.key"
    openssl = shutil.which("openssl")
    assert openssl is not None
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=client", "-CA", str(server.certificate), "-CAkey", str(server.key)]
    subprocess.run([*command, "-keyout", str(key), "-out", str(client)], check=True, capture_output=True)
    port, api_port = free_port(), free_port()
    lines = [f"listeners.ssl.default = 127.0.0.1:{port}", f"management.ssl.port = {api_port}"]
    for where in ("ssl_options", "management.ssl"):
        lines += [f"{where}.cacertfile = {server.certificate}", f"{where}.certfile = {server.certificate}"]
        lines += [f"{where}.keyfile = {server.key}", f"{where}.verify = verify_peer"]
        lines.append(f"{where}.fail_if_no_peer_cert = true")
    with RabbitMQServer(extra_config=(*lines, "management.ssl.ip = 127.0.0.1")) as node:
        node.api("PUT", "/api/queues/%2F/orders", {"durable": True})
        files = f"cacertfile={server.certificate}&certfile={client}&keyfile={key}"
        yield TlsBroker(port, api_port, files)


def test_each_command_reaches_a_broker_with_a_private_authority(
    command: Path, clean_environment: Callable[..., dict[str, str]], run: Run, broker: TlsBroker, tmp_path: Path
) -> None:
    (tmp_path / "sync.py").write_text(SYNCER)

    published = run("publish", "orders", '{"number": 17}', env=broker.environment)
    listed = run("dead-letters", "list", "orders", "--rabbit", "--json", env=broker.environment)
    examined = run("doctor", "--json", "--queue", "orders", env=broker.environment)
    with (tmp_path / "log").open("w") as log:
        consuming = subprocess.Popen(
            [command, "rabbit", "run", "-", "orders", "sync:handle"],
            env=clean_environment(**broker.environment),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: "got 17" in (tmp_path / "log").read_text())
        consuming.send_signal(signal.SIGTERM)
        exit_code = consuming.wait(60)
    finally:
        consuming.kill()
        consuming.wait()

    assert published.returncode == 0, published.stderr
    assert len(json.loads(listed.stdout)) == 1, listed.stderr
    assert examined.returncode != 2, examined.stderr
    assert exit_code == 0
    assert str(tmp_path.parent) not in published.stderr + listed.stderr


@pytest.mark.parametrize("query", ["heartbeat=20", "cacertfile=/no/such/file.pem"])
def test_a_certificate_that_is_not_trusted_is_reported_with_the_remedy(
    invoke: Run, broker: TlsBroker, query: str
) -> None:
    refused = invoke("publish", "orders", "{}", "--rabbit-url", broker.url(query))

    assert refused.returncode == 2
    assert "cacertfile" in refused.stderr
