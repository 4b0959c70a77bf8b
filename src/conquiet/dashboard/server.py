"""Serve a standalone dashboard, for ``conquiet dashboard``. Needs uvicorn."""

import hashlib
import ipaddress
from dataclasses import dataclass, field
from typing import Any, Final

from conquiet.core.extras import require_extra
from conquiet.dashboard.app import Dashboard
from conquiet.dashboard.settings import LOOPBACK, DashboardSettings, require_token
from conquiet.dashboard.signing import TokenLogin
from conquiet.errors import ConfigurationError

_GRACE_S: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Address and token of a standalone dashboard.

    Attributes:
        host: Address to listen on. An address that is not loopback needs a token, for reading too.
        port: Port; 0 selects a free port.
        token: Token for actions; empty: nothing can be changed.
        allowed_hosts: Further accepted host names.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    token: str = field(default="", repr=False)
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.token:
            require_token("the token", self.token)
        elif not self.is_loopback:
            raise ConfigurationError(
                f"listening on {self.host} needs a token: every program that can reach it could read everything. "
                "Set CONQUIET_DASHBOARD_TOKEN, or listen on 127.0.0.1"
            )

    @property
    def is_loopback(self) -> bool:
        """True if only this host can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def standalone(listener: Listener, **settings: Any) -> Dashboard:
    """Return the dashboard that ``conquiet dashboard`` serves."""
    if listener.token:
        # Derived from the token, so that sessions survive a restart and are valid in every process.
        settings["secret"] = hashlib.sha256(f"conquiet dashboard\0{listener.token}".encode()).hexdigest()
    hosts = (*LOOPBACK, listener.host, *listener.allowed_hosts)
    made = DashboardSettings(allowed_hosts=hosts, **settings)
    if not listener.token:
        return Dashboard(made)
    return Dashboard(made, login=TokenLogin(listener.token, secret=made.secret, open_reading=listener.is_loopback))


def make_server(app: Dashboard, listener: Listener) -> Any:
    """Return a uvicorn server of this application; ``server.run()`` serves until SIGINT or SIGTERM."""
    require_extra("dashboard", "uvicorn")
    import uvicorn

    class Server(uvicorn.Server):
        """Closes live pages before it waits for connections, because they would delay the shutdown."""

        async def shutdown(self, sockets: Any = None) -> None:
            app.end_live_pages()
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            host=listener.host,
            port=listener.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ws="none",
            lifespan="on",
        )
    )
