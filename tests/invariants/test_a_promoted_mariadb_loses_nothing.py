"""A MariaDB primary is demoted or killed, and its replica is promoted, while an application works.

The application knows one address, behind which the primary moves, as it does with a proxy or a virtual address:

    application ──▶ address ──▶ primary ──semi-synchronous──▶ replica

A primary that only refuses writes (``read_only``) keeps its connections: the application has to close them. Runs with
``make torture`` only (see ``conftest``): 20 promotions, or the number in ``CONQUIET_FAILOVERS``.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pymysql
import pytest
from tests.invariants.histories import History
from tests.invariants.test_a_promoted_database_loses_nothing import promote_under_work

from conquiet.testing import FaultProxy, MySQLFlavour, wait_until
from conquiet.testing.mysql import MySQLServer

PROMOTIONS = int(os.environ.get("CONQUIET_FAILOVERS", "20"))
SEMI_SYNC = (
    "--log-bin=binlog",
    "--log-slave-updates",
    "--rpl-semi-sync-slave-enabled=1",
    "--rpl-semi-sync-master-timeout=3600000",  # wait instead of continuing without the replica
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-wait-no-slave=1",
    "--slave-net-timeout=5",
)


class Address(FaultProxy):
    """An address with a changeable server. Existing connections stay where they are."""

    def lead_to(self, server: MySQLServer) -> None:
        self._target = (server.host, server.port)


class MariaDbPair:
    """Two MariaDB servers, and the address of the primary."""

    product = "MariaDB"

    def __init__(self, start: Callable[..., MySQLServer], address: Address, primary: MySQLServer) -> None:
        self._start, self._address, self.primary = start, address, primary
        self._numbers = count(2)
        for statement in (
            "CREATE USER app@'%' IDENTIFIED BY 'app'",  # unlike root it cannot write to a read-only server
            "GRANT ALL ON conquiet.* TO app@'%'",
        ):
            call(primary, statement)
        self.replica = self._new_replica()

    @property
    def url(self) -> str:
        return f"mysql+pymysql://app:app@{self._address.host}:{self._address.port}/conquiet?connect_timeout=5"

    def switch(self) -> None:
        old = self.primary
        call(old, "SET GLOBAL read_only = 1")  # waits for the transactions that are open
        wait_until(lambda: position_of(self.replica) == end_of(old))
        self._promote()

    def kill(self) -> None:
        self.primary.kill()
        self._promote()

    def _promote(self) -> None:
        call(self.replica, "STOP SLAVE IO_THREAD")
        wait_until(lambda: "has read all relay log" in str(slave_of(self.replica)["Slave_SQL_Running_State"]))
        call(self.replica, "STOP SLAVE")
        self.primary, self.replica = self.replica, self.primary
        self._address.lead_to(self.primary)

    def rejoin(self) -> None:
        """Replace the old primary by a new server, which reads all that the new primary has ever written."""
        self.replica.stop()
        self.replica = self._new_replica()

    def effects(self) -> list[str]:
        return [row["id"] for row in call(self.primary, "SELECT id FROM effects ORDER BY row")]

    def _new_replica(self) -> MySQLServer:
        made = self._start(extra_args=(*SEMI_SYNC, f"--server-id={next(self._numbers)}"))
        call(
            made,
            f"CHANGE MASTER TO MASTER_HOST='{self.primary.host}', MASTER_PORT={self.primary.port}, MASTER_USER='root', "
            "MASTER_LOG_FILE='binlog.000001', MASTER_LOG_POS=4, MASTER_USE_GTID=no, MASTER_CONNECT_RETRY=1",
        )
        call(self.primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1")  # promoted without a replica
        call(made, "START SLAVE")
        wait_until(lambda: position_of(made) == end_of(self.primary), timeout_s=120)
        return made


def call(server: MySQLServer, statement: str) -> list[dict[str, Any]]:
    """Run one statement as root."""
    connection: Any = pymysql.connect(
        host=server.host, port=server.port, user="root", database="conquiet", cursorclass=pymysql.cursors.DictCursor
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def slave_of(server: MySQLServer) -> dict[str, Any]:
    return call(server, "SHOW SLAVE STATUS")[0]


def position_of(replica: MySQLServer) -> tuple[str, int]:
    """Return how far a replica has executed what its primary wrote."""
    found = slave_of(replica)
    assert not found["Last_SQL_Error"], found["Last_SQL_Error"]
    return found["Relay_Master_Log_File"], found["Exec_Master_Log_Pos"]


def end_of(primary: MySQLServer) -> tuple[str, int]:
    """Return the end of what a primary has written."""
    (found,) = call(primary, "SHOW MASTER STATUS")
    return found["File"], found["Position"]


@pytest.fixture
def private_mariadb() -> Iterator[Callable[..., MySQLServer]]:
    """Yield a factory of MariaDB servers: MySQL replicates by other words."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(MySQLServer(flavour=MySQLFlavour.MARIADB, **options))


@pytest.mark.timeout(1_800)
async def test_an_application_goes_on_with_the_promoted_mariadb(
    private_mariadb: Callable[..., MySQLServer],
    redis_url: str,
    key_prefix: str,
    new_history: Callable[..., History],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary = private_mariadb(extra_args=(*SEMI_SYNC, "--server-id=1"))
    with Address(primary.host, primary.port) as address:
        pair = await asyncio.to_thread(MariaDbPair, private_mariadb, address, primary)
        await promote_under_work(pair, PROMOTIONS, redis_url, key_prefix, new_history, monkeypatch.setattr)
