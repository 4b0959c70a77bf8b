#!/usr/bin/env python3
"""Fetch newer servers than this machine has, without installing anything.

MySQL, Redis, Valkey and RabbitMQ come from Debian's unstable suite through an apt configuration whose
lists, cache, state and dpkg status are private. The mirror and its keyring are those of the
machine's own apt sources. What comes out, per product:

    <into>/mysql/VERSION      the marker, written last: what has one is complete
    <into>/mysql/root/        the unpacked packages, their libc included
    <into>/mysql/bin/mysqld   starts the server with that libc; call it like any other mysqld

RabbitMQ's root is entered by chroot, so it needs root: Erlang starts further programs, which need this libc too.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from server_launchers import PRODUCTS, Product, chroot_launcher_text, launcher_text

APT_FOLDER = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")
DEFAULT_INTO = Path(__file__).resolve().parent.parent / ".servers"
SUITE = "unstable"
ROLLING_SUITES = frozenset({"unstable", "sid", "testing", "stable", "oldstable"})
MEGABYTE = 1_000_000

# Large files that no server reads; Perl is there for helper scripts that are not run.
UNREAD = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/perl*", "usr/lib/*/perl*")

APT_CONF = """\
// Hooks and pins of the machine are about the machine, not about this folder.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architectures {{ "{architecture}"; }};
APT::Default-Release "";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
// The sandbox user of a root apt cannot write into a private folder.
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Etc::SourceList "{folder}/mirror.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
"""


class FetchError(Exception):
    """A product could not be fetched; the previous one is unchanged."""


@dataclass(frozen=True, slots=True)
class Source:
    """One apt source, in either of the two formats."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def parse_one_line(text: str) -> Iterator[Source]:
    """Read the ``deb [options] uri suite component…`` format."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?([^#]+)", line)
        words = match[2].split() if match else []
        if match and len(words) > 2:  # noqa: PLR2004 - a uri, a suite and at least one component
            options = dict(option.partition("=")[::2] for option in (match[1] or "").split())
            yield Source(words[0], (words[1],), tuple(words[2:]), options.get("signed-by", ""))


def parse_deb822(text: str) -> Iterator[Source]:
    """Read the stanza format of ``.sources`` files."""
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", without_comments):
        # A value keeps its further lines as they are: Signed-By may be a whole key.
        pairs = re.findall(r"^([^\s:]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        fields = {name.lower(): value for name, value in pairs}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").strip() == "no":
            continue
        suites, components = (tuple(fields.get(name, "").split()) for name in ("suites", "components"))
        for uri in fields.get("uris", "").split():
            yield Source(uri, suites, components, fields.get("signed-by", "").rstrip())


def read_sources(apt_folder: Path) -> list[Source]:
    """Return every enabled source, in the order apt reads them."""
    files = [apt_folder / "sources.list", *sorted((apt_folder / "sources.list.d").glob("*"))]
    parsers = {".list": parse_one_line, ".sources": parse_deb822}
    readable = [file for file in files if file.suffix in parsers and file.is_file()]
    return [source for file in readable for source in parsers[file.suffix](file.read_text("utf-8"))]


def debian_codename(os_release: str) -> str | None:
    """Return the name of this machine's Debian release, None on another distribution."""
    fields = dict(line.partition("=")[::2] for line in os_release.splitlines())
    is_debian = fields.get("ID", "").strip('"') == "debian"
    return fields.get("VERSION_CODENAME", "").strip('"') if is_debian else None


def pick_mirror(sources: Sequence[Source], codename: str | None) -> Source:
    """Choose the source that carries the whole Debian archive, and so its unstable suite.

    The suite tells it apart and the address does not: security and third-party archives have
    other suites, while a mirror may have any address.
    """
    if not sources:
        raise FetchError(f"no enabled apt source was found in {APT_FOLDER}")
    wanted = ROLLING_SUITES | {codename}
    for source in sources:
        is_archive = "main" in source.components and not wanted.isdisjoint(source.suites)
        if is_archive and not source.uri.startswith("cdrom:"):
            return source
    raise FetchError(
        "no apt source of this machine is a Debian mirror, and only those have the unstable suite "
        "(Ubuntu's own archive has none)"
    )


def mirror_stanza(mirror: Source, suites: str = SUITE) -> str:
    """Write the private source: the machine's mirror and keyring, another suite."""
    # Without Signed-By apt falls back on the machine's trusted keys; it never goes unsigned.
    keyring = f"Signed-By: {mirror.signed_by}\n" if mirror.signed_by else ""
    return f"Types: deb\nURIs: {mirror.uri}\nSuites: {suites}\nComponents: main\nTargets: Packages\n{keyring}"


def run(*command: str) -> str:
    """Run a program and return its output; its first reason for failing becomes ours."""
    env = {**os.environ, "LC_ALL": "C"}
    # Open handles are passed on for the sake of the lock: see staging_folder.
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, close_fds=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
        reason = next((line for line in lines if line.startswith("E:")), lines[-1])
        what = "the download" if command[0] == "apt-get" else Path(command[0]).name
        raise FetchError(f"{what} failed: {reason.removeprefix('E:').strip()}")
    return done.stdout


class PrivateApt:
    """An apt that reads the unstable suite and knows of no installed package."""

    def __init__(self, folder: Path, mirror: Source, *, suites: str = SUITE) -> None:
        self._archives = folder / "archives"
        for name in ("state", "lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True)
        # Nothing is installed, so every library down to libc is downloaded.
        (folder / "status").touch()
        (folder / "mirror.sources").write_text(mirror_stanza(mirror, suites), "utf-8")
        architecture = run("dpkg", "--print-architecture").strip()
        conf = folder / "apt.conf"
        conf.write_text(APT_CONF.format(folder=folder, architecture=architecture), "utf-8")
        self._apt_get = ("apt-get", "-c", str(conf), "-qq", "-y")
        # Without this option an unreachable mirror is a warning and an empty list.
        run(*self._apt_get, "-o", "APT::Update::Error-Mode=any", "update")

    def unpack(self, package: str, root: Path, system: Sequence[str] = ()) -> tuple[str, int]:
        """Unpack a package and its libraries, or a whole system; return its version and the bytes downloaded."""
        run(*self._apt_get, "install", "--download-only", package, *system)
        # base-files first: it has the links from /bin and /lib into /usr.
        debs = sorted(self._archives.glob("*.deb"), key=lambda deb: not deb.name.startswith("base-files_"))
        version = ""
        for deb in debs:
            name, _, rest = deb.name.partition("_")
            # Programs such as systemd or passwd are depended on by install scripts only.
            if system or name.startswith(("lib", package.partition("-")[0])):
                run("dpkg-deb", "-x", str(deb), str(root))
            if name == package:
                version = re.sub(r"^\d+%3a", "", rest.rpartition("_")[0])
        downloaded = sum(deb.stat().st_size for deb in debs)
        for deb in debs:
            deb.unlink()
        return version, downloaded


def slim(root: Path) -> None:
    """Remove files that no server reads, and every set-uid bit, which must not exist here."""
    for unread in (path for pattern in UNREAD for path in root.glob(pattern)):
        shutil.rmtree(unread)
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(stat.S_IMODE(mode) & 0o777)


def write_launchers(product: Product, folder: Path) -> None:
    """Make the product's programs callable and see that the server starts."""
    root = folder / "root"
    if product.system:
        write_chroot_launchers(product, folder)
        return
    loaders = [path.relative_to(root) for path in root.glob("usr/lib/*/ld*.so.[0-9]")]
    if not loaders:
        raise FetchError(f"the packages of {product.name} brought no dynamic loader")
    (folder / "bin").mkdir()
    for binary in (product.server, *product.extras):
        if (root / binary).exists():
            launcher = folder / "bin" / Path(binary).name
            launcher.write_text(launcher_text(product, binary, str(loaders[0])), "utf-8")
            launcher.chmod(0o755)
    run(str(folder / "bin" / Path(product.server).name), "--version")


def write_chroot_launchers(product: Product, folder: Path) -> None:
    """Make the programs of a whole system callable, and see that one of them starts."""
    root = folder / "root"
    for name in ("proc", "dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    shutil.copy("/etc/hosts", root / "etc/hosts")  # Erlang looks up the names of nodes
    (folder / "bin").mkdir()
    for binary in (product.server, *product.extras):
        launcher = folder / "bin" / Path(binary).name
        launcher.write_text(chroot_launcher_text(binary), "utf-8")
        launcher.chmod(0o755)
    if os.geteuid() != 0:
        raise FetchError(f"{product.name} runs in a chroot, which needs root")
    run(str(folder / "bin" / Path(product.extras[0]).name), "version")


def fetched_version(into: Path, product: Product) -> str | None:
    """Return the version the marker names, None where there is no complete fetch."""
    try:
        return (into / product.name / "VERSION").read_text("utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def fetch(apt: PrivateApt, product: Product, into: Path, staging: Path) -> str:
    """Build the product aside, then rename it into place; return what to tell the user."""
    started = time.monotonic()
    fresh, final = staging / product.name, into / product.name
    (fresh / "root").mkdir(parents=True)
    version, downloaded = apt.unpack(product.package, fresh / "root", product.system)
    slim(fresh / "root")
    write_launchers(product, fresh)
    (fresh / "VERSION").write_text(f"{version}\n", "utf-8")
    # A kill between the two renames leaves the product missing, which the next run mends.
    # Half of one version over half of another it could not see.
    if final.exists():
        final.rename(staging / f"{product.name}.old")
    fresh.rename(final)
    disk = sum(path.lstat().st_size for path in final.rglob("*"))
    sizes = f"{downloaded / MEGABYTE:.0f} MB downloaded, {disk / MEGABYTE:.0f} MB on disk"
    return f"{product.name} {version}: {sizes}, {time.monotonic() - started:.1f} s"


def remove(folder: Path) -> None:
    """Delete a folder, even while the child of a child that was just killed writes into it."""
    deadline = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def staging_folder(into: Path) -> Iterator[Path]:
    """Lend the one folder where unfinished work lies, to one process at a time."""
    into.mkdir(parents=True, exist_ok=True)
    staging = into / ".fetch"
    with contextlib.ExitStack() as cleanup:
        handle = os.open(into, os.O_RDONLY)
        cleanup.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX)
        # An apt-get that outlives its killed parent keeps the lock until it has stopped writing.
        os.set_inheritable(handle, True)  # noqa: FBT003 - the function's only form
        # Delete the folder only after the wait: its content is the rest of a killed run.
        cleanup.callback(remove, staging)
        remove(staging)
        staging.mkdir()
        yield staging


def fetch_missing(products: Iterable[Product], into: Path, *, refresh: bool) -> None:
    """Fetch the products that are not there yet, or all of them on refresh."""
    missing = [product for product in products if refresh or fetched_version(into, product) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise FetchError("apt-get and dpkg-deb are needed, so this works on Debian and its relatives only")
    codename = debian_codename(OS_RELEASE.read_text("utf-8")) if OS_RELEASE.exists() else None
    mirror = pick_mirror(read_sources(APT_FOLDER), codename)
    with staging_folder(into) as staging:
        # Another process may have done the work while this one waited for the lock.
        missing = [product for product in missing if refresh or fetched_version(into, product) is None]
        if missing:
            apt = PrivateApt(staging / "apt", mirror)
            for product in missing:
                print(fetch(apt, product, into, staging), flush=True)


def product_named(name: str) -> Product:
    """Turn an argument into a product."""
    if name not in PRODUCTS:
        raise argparse.ArgumentTypeError(f"no product {name!r}, there are: {', '.join(PRODUCTS)}")
    return PRODUCTS[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Fetch newer servers from Debian unstable into a folder.")
    parser.add_argument("products", nargs="*", type=product_named, help=f"of {', '.join(PRODUCTS)}; default: all")
    parser.add_argument("--into", type=Path, default=DEFAULT_INTO, help="the folder; default: %(default)s")
    parser.add_argument("--refresh", action="store_true", help="fetch again what is already there")
    parser.add_argument("--list", action="store_true", help="print what is there and fetch nothing")
    options = parser.parse_args(arguments)
    products: list[Product] = options.products or list(PRODUCTS.values())
    into: Path = options.into.resolve()
    try:
        if not options.list:
            fetch_missing(products, into, refresh=options.refresh)
    except (FetchError, OSError) as error:
        print(f"fetch_servers: {error}", file=sys.stderr)
        return 1
    for product in products if options.list else ():
        print(f"{product.name} {fetched_version(into, product) or '-'}")
    return 0


if __name__ == "__main__":
    # A termination unwinds like Ctrl-C, so that the staging folder goes and apt-get with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
