"""The parts of ``scripts/fetch_servers.py`` that need no network."""

import subprocess
from pathlib import Path
from typing import Any

import fetch_servers as script
import pytest
import server_launchers

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "fetch_servers.py"
KEYRING = "/usr/share/keyrings/archive.gpg"
LOADER = "usr/lib/some-triplet/ld-linux.so.2"


def a_source(**changes: Any) -> Any:
    return script.Source(
        **{"uri": "http://mirror.test/debian", "suites": ("bookworm",), "components": ("main",), **changes}
    )


def a_fetched(product: str, into: Path, version: str = "1.2.3-4") -> None:
    (into / product).mkdir(parents=True)
    (into / product / "VERSION").write_text(f"{version}\n")


# The deb822 format.


def test_a_stanza_is_read_around_its_comments() -> None:
    text = (
        f"# first\nTypes: deb deb-src\n# between\nURIs: http://mirror.test/debian\n"
        f"Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: {KEYRING}\n"
    )

    assert list(script.parse_deb822(text)) == [
        a_source(suites=("bookworm", "bookworm-updates"), components=("main", "contrib"), signed_by=KEYRING)
    ]


@pytest.mark.parametrize("gap", ["\n", "\n \n", "\n# note\n"])
def test_every_stanza_and_every_uri_is_a_source(gap: str) -> None:
    stanza = "Types: deb\nURIs: {}\nSuites: s\nComponents: main\n"
    text = stanza.format("http://a.test\n# between\n http://b.test") + gap + stanza.format("http://c.test")

    assert [source.uri for source in script.parse_deb822(text)] == [
        "http://a.test",
        "http://b.test",
        "http://c.test",
    ]


@pytest.mark.parametrize("line", ["Enabled: no", "Types: deb-src"])
def test_a_stanza_that_gives_no_packages_is_passed_over(line: str) -> None:
    text = f"Types: deb\nURIs: http://mirror.test\nSuites: s\nComponents: main\n{line}\n"

    assert list(script.parse_deb822(text)) == []


def test_a_key_written_into_the_stanza_reaches_the_private_source_unchanged() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY865\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"Types: deb\nURIs: http://mirror.test\nSuites: s\nSigned-By:{key}\nComponents: main\n"

    (source,) = script.parse_deb822(text)

    assert f"Signed-By: {key}\n" in script.mirror_stanza(source)
    assert source.components == ("main",)


# The one-line format.


def test_a_line_is_read_with_and_without_options() -> None:
    text = (
        f"deb [arch=amd64 signed-by={KEYRING}] http://mirror.test/debian bookworm main contrib # why\n"
        "deb http://mirror.test/debian bookworm main\n"
    )

    assert list(script.parse_one_line(text)) == [
        a_source(components=("main", "contrib"), signed_by=KEYRING),
        a_source(),
    ]


@pytest.mark.parametrize(
    "line", ["", "# deb http://m.test s main", "deb-src http://m.test s main", "deb http://m.test ./", "deb"]
)
def test_a_line_that_gives_no_archive_is_passed_over(line: str) -> None:
    assert list(script.parse_one_line(line)) == []


def test_files_are_read_in_the_order_of_apt(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://first.test s main\n")
    (parts / "b.list").write_text("deb http://third.test s main\n")
    (parts / "a.sources").write_text("Types: deb\nURIs: http://second.test\nSuites: s\nComponents: main\n")
    (parts / "c.list.disabled").write_text("deb http://never.test s main\n")

    uris = [source.uri for source in script.read_sources(tmp_path)]

    assert uris == ["http://first.test", "http://second.test", "http://third.test"]


# The mirror.


def test_the_mirror_is_the_one_with_the_suite_of_this_release() -> None:
    archive = a_source(uri="http://any.address.test/x")
    others = [
        a_source(suites=("bookworm-security",)),
        a_source(suites=("nodistro",)),
        a_source(components=("contrib",)),
        a_source(uri="cdrom:[disk]/"),
    ]

    assert script.pick_mirror([*others, archive], "bookworm") is archive


def test_a_machine_that_follows_a_rolling_suite_has_a_mirror_too() -> None:
    archive = a_source(suites=("sid",))

    assert script.pick_mirror([archive], None) is archive


@pytest.mark.parametrize(
    ("sources", "reason"),
    [([], "no enabled apt source"), ([a_source(suites=("noble",))], "Debian mirror")],
)
def test_without_a_mirror_the_error_says_what_is_missing(sources: list[Any], reason: str) -> None:
    with pytest.raises(script.FetchError, match=reason):
        script.pick_mirror(sources, None)


@pytest.mark.parametrize(
    ("text", "codename"),
    [
        ('ID=debian\nVERSION_CODENAME="bookworm"\n', "bookworm"),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n", None),
        ("", None),
    ],
)
def test_only_debian_has_a_debian_codename(text: str, codename: str | None) -> None:
    assert script.debian_codename(text) == codename


def test_the_private_source_keeps_mirror_and_keyring_and_changes_the_suite() -> None:
    stanza = script.mirror_stanza(a_source(signed_by=KEYRING))

    assert list(script.parse_deb822(stanza)) == [a_source(suites=("unstable",), signed_by=KEYRING)]


def test_without_a_keyring_apt_is_left_to_its_trusted_keys() -> None:
    stanza = script.mirror_stanza(a_source())

    assert "Signed-By" not in stanza
    assert "Trusted" not in stanza


# The launcher. It is run, with a loader that prints its arguments.


def a_product_folder(folder: Path, product: Any) -> Path:
    """Lay a product out as a fetch does; return its server's launcher."""
    loader = folder / "root" / LOADER
    loader.parent.mkdir(parents=True)
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)
    launcher = folder / "bin" / Path(product.server).name
    launcher.parent.mkdir()
    launcher.write_text(server_launchers.launcher_text(product, product.server, LOADER))
    launcher.chmod(0o755)
    return launcher


def arguments_seen(launcher: Path, *arguments: str) -> list[str]:
    """Return what the program gets after the loader's own four arguments."""
    done = subprocess.run([launcher, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[4:]


def test_a_launcher_uses_the_loader_and_libraries_of_its_own_root(tmp_path: Path) -> None:
    launcher = a_product_folder(tmp_path / "redis", server_launchers.PRODUCTS["redis"])

    done = subprocess.run([launcher, "--port", "1"], check=True, capture_output=True, text=True)

    root = tmp_path / "redis" / "root"
    libraries, binary = root / "usr/lib/some-triplet", root / "usr/bin/redis-server"
    expected = ["--inhibit-cache", "--library-path", str(libraries), str(binary), "--port", "1"]
    assert done.stdout.splitlines() == expected


def test_a_launcher_works_after_a_move_and_through_a_link(tmp_path: Path) -> None:
    a_product_folder(tmp_path / "before", server_launchers.PRODUCTS["redis"])
    moved = (tmp_path / "before").rename(tmp_path / "after the move")
    link = tmp_path / "link"
    link.symlink_to(moved / "bin" / "redis-server")

    assert arguments_seen(link, "a b", "") == ["a b", ""]


@pytest.mark.parametrize("first", ["--no-defaults", "--defaults-file=/some file", "--defaults-extra-file=x"])
def test_mysqld_gets_its_folders_right_after_a_defaults_option(tmp_path: Path, first: str) -> None:
    """Mysqld refuses a defaults option anywhere but in the first place."""
    launcher = a_product_folder(tmp_path, server_launchers.PRODUCTS["mysql"])

    seen = arguments_seen(launcher, first, "--datadir=/some where")

    usr = tmp_path / "root" / "usr"
    own = [f"--basedir={usr}", f"--lc-messages-dir={usr}/share/mysql"]
    assert seen == [first, *own, "--datadir=/some where"]


@pytest.mark.parametrize("arguments", [[], ["--version"]])
def test_mysqld_gets_its_folders_first_without_a_defaults_option(tmp_path: Path, arguments: list[str]) -> None:
    launcher = a_product_folder(tmp_path, server_launchers.PRODUCTS["mysql"])

    seen = arguments_seen(launcher, *arguments)

    assert [argument.partition("=")[0] for argument in seen] == [
        "--basedir",
        "--lc-messages-dir",
        *arguments,
    ]


# The marker.


def test_only_a_folder_with_a_marker_counts_as_fetched(tmp_path: Path) -> None:
    mysql, redis, valkey, _ = server_launchers.PRODUCTS.values()
    a_fetched("mysql", tmp_path, "9.9.9-1")
    (tmp_path / "redis").mkdir()
    a_fetched("valkey", tmp_path, "")

    found = [script.fetched_version(tmp_path, product) for product in (mysql, redis, valkey)]

    assert found == ["9.9.9-1", None, None]


def test_fetched_servers_are_skipped_without_a_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_fetched("redis", tmp_path)
    monkeypatch.setenv("PATH", "")

    assert script.main(["--into", str(tmp_path), "redis"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["redis", "--refresh"], ["valkey"], []])
def test_a_refresh_or_a_missing_product_does_need_apt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    a_fetched("redis", tmp_path)
    monkeypatch.setenv("PATH", "")

    assert script.main(["--into", str(tmp_path), *arguments]) == 1
    assert "apt-get and dpkg-deb are needed" in capsys.readouterr().err
    assert script.fetched_version(tmp_path, server_launchers.PRODUCTS["redis"]) == "1.2.3-4"


def test_the_list_names_each_product_and_its_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_fetched("redis", tmp_path, "8.0.0-1")

    assert script.main(["--into", str(tmp_path), "--list"]) == 0
    assert capsys.readouterr().out == "mysql -\nredis 8.0.0-1\nvalkey -\nrabbitmq -\n"


def test_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".fetch" / "mysql" / "half"
    leftover.mkdir(parents=True)

    with script.staging_folder(tmp_path) as staging:
        assert list(staging.iterdir()) == []
        (staging / "new").touch()

    assert list(tmp_path.iterdir()) == []


def test_a_run_that_gets_no_lock_leaves_the_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with script.staging_folder(tmp_path) as staging:
        (staging / "work").touch()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("fcntl.flock", interrupted)
        with pytest.raises(KeyboardInterrupt), script.staging_folder(tmp_path):
            pass

        assert (staging / "work").exists()


def test_a_set_uid_bit_does_not_survive_unpacking(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "bin" / "program"
    manual = tmp_path / "usr" / "share" / "man" / "man1"
    program.parent.mkdir(parents=True)
    manual.mkdir(parents=True)
    program.touch()
    program.chmod(0o4755)

    script.slim(tmp_path)

    assert program.stat().st_mode & 0o7777 == 0o755
    assert not manual.parent.exists()


def test_the_script_names_no_host() -> None:
    """The mirror is the machine's own: another machine may not reach any other."""
    assert "http" not in SCRIPT.read_text()


def test_a_program_of_a_whole_system_runs_inside_its_root() -> None:
    """Erlang starts further programs, so RabbitMQ cannot be started by a loader."""
    product = server_launchers.PRODUCTS["rabbitmq"]

    text = server_launchers.chroot_launcher_text(product.server)

    assert 'chroot "$0" /usr/lib/rabbitmq/bin/rabbitmq-server' in text
    assert "base-files" in product.system  # the links from /bin and /lib
