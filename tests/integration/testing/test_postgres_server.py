import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from conquiet.testing import ExternalPostgres, PostgresServer, ServerNotOwnedError
from conquiet.testing.databases import POSTGRES_QUOTE, quoted
from conquiet.testing.server_supervisor import remove_shared_memory
from conquiet.testing.shared import SharedPostgres

StartPostgres = Callable[..., PostgresServer]


def run(url: str, *statements: str) -> list[object]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        rows: list[object] = []
        for statement in statements:
            result = connection.execute(sa.text(statement))
            rows = list(result.scalars()) if result.returns_rows else []
        return rows


def segments_of(pid: int) -> list[str]:
    """System V shared memory that a process made."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[4] == str(pid)]


def test_committed_rows_survive_a_kill_a_restart_and_a_pause(private_postgres: StartPostgres) -> None:
    """One test, because each start of a database costs a second."""
    server = private_postgres()
    url = server.url
    run(url, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")

    server.kill()
    assert not server.is_running
    server.restart()
    assert server.url == url
    assert run(url, "SELECT id FROM t") == [1]

    engine = sa.create_engine(url)
    with engine.connect() as open_connection:
        open_connection.execute(sa.text("SELECT 1"))
        server.restart()  # does not wait for a client that stays connected
        open_connection.invalidate()
    engine.dispose()
    assert run(url, "INSERT INTO t VALUES (2)", "SELECT id FROM t ORDER BY id") == [1, 2]

    server.pause()
    assert not server.is_running
    server.resume()
    assert run(url, "SELECT COUNT(*) FROM t") == [2]


def test_a_killed_server_leaves_no_shared_memory() -> None:
    """The kernel keeps 4,096 segments; the server that made one was killed and cannot remove it."""
    server = PostgresServer().start()
    pid = server.pid
    assert len(segments_of(pid)) == 1

    server.stop()

    assert segments_of(pid) == []


def test_only_unused_segments_of_the_named_processes_are_removed() -> None:
    """Some kernels remove the segments of a dead process (kernel.shm_rmid_forced), so the test makes one."""
    before = segments_of(os.getpid())
    assert ctypes.CDLL(None).shmget(0, 4096, 0o600) >= 0

    remove_shared_memory({1 << 30})
    assert len(segments_of(os.getpid())) == len(before) + 1
    remove_shared_memory({os.getpid()})

    assert segments_of(os.getpid()) == []


def test_the_server_does_not_run_as_root(private_postgres: StartPostgres) -> None:
    server = private_postgres(settings={"work_mem": "1MB"})

    assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    assert run(server.url, "SHOW work_mem") == ["1MB"]


def test_the_version_is_the_one_the_server_reports(postgres_server: SharedPostgres, postgres_url: str) -> None:
    [reported] = run(postgres_url, "SHOW server_version")

    assert str(reported).startswith(postgres_server.version)
    assert int(postgres_server.version.split(".")[0]) >= 13


def test_each_test_gets_an_empty_postgresql_database(postgres_url: str) -> None:
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert run(postgres_url, tables) == []
    assert run(postgres_url, "SHOW server_encoding") == ["UTF8"]


def test_a_postgresql_database_is_dropped_while_in_use(postgres_server: SharedPostgres) -> None:
    name = f"conquiet_test_{uuid4().hex[:12]}"
    url = postgres_server.create_database(name)
    engine = sa.create_engine(url)
    leaked = engine.connect()
    leaked.execute(sa.text("CREATE TABLE t (id INT PRIMARY KEY)"))

    postgres_server.drop_database(name)

    assert name not in run(postgres_server.url, "SELECT datname FROM pg_database")
    leaked.invalidate()
    leaked.close()
    engine.dispose()


def test_a_postgresql_given_by_url_is_used_and_never_killed(postgres_server: SharedPostgres) -> None:
    external = ExternalPostgres(postgres_server.url)
    name = f"conquiet_test_{uuid4().hex[:12]}"

    url = external.create_database(name)
    assert run(url, "SELECT current_database()") == [name]
    external.drop_database(name)

    assert external.version == postgres_server.version
    with pytest.raises(ServerNotOwnedError, match="CONQUIET_TEST_POSTGRES_URL"):
        external.kill()


@pytest.mark.parametrize("name", ["", "a-b", 'x"; DROP TABLE t; --', "A"])
def test_only_plain_names_become_part_of_a_statement(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain database name"):
        quoted(name, POSTGRES_QUOTE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the account")
def test_the_folder_belongs_to_the_account_that_runs_the_server(private_postgres: StartPostgres) -> None:
    server = private_postgres()

    assert server.folder.stat().st_uid == Path(f"/proc/{server.pid}").stat().st_uid
