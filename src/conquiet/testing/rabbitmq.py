"""A private RabbitMQ node, invisible to every other node on the machine.

Erlang nodes meet through epmd, a daemon on a fixed port, and trust each other by a cookie in HOME. A private node has
its own epmd on its own port, its own HOME and its own name, so that no other ``rabbitmqctl`` or cluster reaches it.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from conquiet.rabbitmq_api import RabbitApi, with_vhost
from conquiet.testing import discovery, handshakes
from conquiet.testing.errors import ServerStartError
from conquiet.testing.ports import free_port
from conquiet.testing.process import PrivateServer, ServerCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

_CTL_TIMEOUT_S = 180.0  # it starts an Erlang machine: over a minute on two cores at a load of 40
_CONFIG = """\
listeners.tcp.default = {host}:{port}
management.tcp.ip = {host}
management.tcp.port = {management_port}
# Consumers and numbers show in the management API within a second; by default it takes five. The finest retention
# sets the pace at which its collector looks, the other interval the pace at which the broker reports.
collect_statistics_interval = 500
management.sample_retention_policies.global.minute = 1
management.sample_retention_policies.basic.minute = 1
management.sample_retention_policies.detailed.minute = 1
# The alarm for a full disk would block every publisher on a small test machine.
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = info
log.file = false
"""


class RabbitMQServer(PrivateServer):
    """rabbitmq-server with the management plugin and the user ``guest``.

    Args:
        binary: The ``rabbitmq-server`` script to run; ``rabbitmqctl`` must be in the same folder.
        extra_config: Further lines for ``rabbitmq.conf``, such as ``("heartbeat = 2",)``.
    """

    product: ClassVar[str] = "rabbitmq"
    start_timeout_s: ClassVar[float] = 90.0

    def __init__(self, *, binary: str | os.PathLike[str] | None = None, extra_config: Sequence[str] = ()) -> None:
        super().__init__()
        self._binary = discovery.find_rabbitmq(binary)
        self._extra_config = tuple(extra_config)
        self._node = f"conquiet{uuid4().hex[:12]}@localhost"
        self._management_port = self._epmd_port = self._dist_port = 0

    @property
    def url(self) -> str:
        """AMQP URL of the default vhost."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"

    @property
    def management_url(self) -> str:
        """Address of the management API, with its login."""
        return f"http://guest:guest@{self.host}:{self._chosen(self._management_port)}"

    @property
    def node(self) -> str:
        """The Erlang node's name."""
        return self._node

    def api(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        """Call the management API, for example ``api("GET", "/api/consumers/%2F")``.

        Args:
            method: GET, PUT, POST or DELETE.
            path: Path and query, already quoted.
            body: The JSON value to send, or None.
            missing_ok: Return None for an object that does not exist, in place of raising.
        """
        return RabbitApi(self.management_url).request(method, path, body, missing_ok=missing_ok)

    def ctl(self, *args: str) -> str:
        """Run ``rabbitmqctl`` against this node and return what it printed. Takes seconds; see :meth:`api`.

        Raises:
            ServerStartError: It failed; the text has its output.
        """
        done = subprocess.run(  # noqa: S603 - the broker's own tool
            [self._binary.with_name("rabbitmqctl"), "--quiet", "--node", self._node, *args],
            env=dict(os.environ) | self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CTL_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise ServerStartError(f"rabbitmqctl {' '.join(args)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def create_vhost(self, name: str) -> str:
        """Create a vhost and return its AMQP URL."""
        RabbitApi(self.management_url).create_vhost(name)
        return with_vhost(self.url, name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its queues; connections to it are closed by the broker."""
        RabbitApi(self.management_url).delete_vhost(name)

    def _choose_ports(self) -> None:
        self._port, self._management_port = free_port(), free_port()
        self._epmd_port, self._dist_port = free_port(), free_port()

    def _command(self) -> ServerCommand:
        config = _CONFIG.format(host=self.host, port=self.port, management_port=self._management_port)
        (self.folder / "rabbitmq.conf").write_text(config + "".join(f"{line}\n" for line in self._extra_config))
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        return ServerCommand((str(self._binary),), self._environment())

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_NODE_IP_ADDRESS": "",  # the listener is in rabbitmq.conf
            "RABBITMQ_NODE_PORT": "",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            # Must not exist: it keeps the machine's own rabbitmq-env.conf out.
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            # Makes the script replace itself by the Erlang machine, so that signals reach the broker and not a shell.
            "RUNNING_UNDER_SYSTEMD": "true",
            "NOTIFY_SOCKET": "",
            # Idle schedulers sleep instead of spinning, because the tests run on the same machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _probe(self) -> str:
        version = handshakes.amqp_version(self._probe_tcp())
        # The port alone does not prove that our node replies; the node's name does.
        overview = self.api("GET", "/api/overview")
        if overview["node"] != self._node:
            raise handshakes.NotReadyError(f"another node answers here: {overview['node']}")
        # After a restart the default vhost may become ready later than the listener.
        if self.api("GET", "/api/vhosts/%2F").get("cluster_state", {}).get(self._node) != "running":
            raise handshakes.NotReadyError("the default vhost is not running yet")
        return version
