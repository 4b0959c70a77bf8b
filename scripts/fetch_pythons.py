#!/usr/bin/env python3
"""Fetch newer Python interpreters than this machine has, without installing anything.

    python scripts/fetch_pythons.py --into .servers 3.13 3.14

They come from Debian's unstable suite, which no longer has 3.12. Each is unpacked with its own libc, like the servers
of ``fetch_servers``:

    <into>/python3.13/bin/python3.13   starts the interpreter with that libc

``make_environment`` builds a virtual environment whose ``bin/python`` is such a launcher, so that child processes
started through ``sys.executable`` run with the same libc.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fetch_servers
from fetch_servers import FetchError, PrivateApt
from server_launchers import Product

VERSIONS = ("3.13", "3.14")

# An environment finds sys.executable and pyvenv.cfg from argv[0], which has to be this file; the interpreter finds
# its library from its own path.
LAUNCHER = """\
#!/bin/sh
# Written by scripts/fetch_pythons.py.
exec "{root}/{loader}" --inhibit-cache --library-path "{root}/{libraries}" {argv0}"{root}/{binary}" "$@"
"""


def product_of(version: str) -> Product:
    """Return what to fetch for a version such as 3.13."""
    return Product(f"python{version}", f"python{version}", f"usr/bin/python{version}")


def fetch(versions: Sequence[str], into: Path) -> None:
    """Fetch the interpreters that are not there yet."""
    missing = [one for one in versions if fetch_servers.fetched_version(into, product_of(one)) is None]
    if not missing:
        return
    codename = fetch_servers.debian_codename(fetch_servers.OS_RELEASE.read_text("utf-8"))
    mirror = fetch_servers.pick_mirror(fetch_servers.read_sources(fetch_servers.APT_FOLDER), codename)
    with fetch_servers.staging_folder(into) as staging:
        debian = PrivateApt(staging / "debian", mirror)
        for version in missing:
            print(_fetch_one(debian, version, into, staging), flush=True)


def _fetch_one(apt: PrivateApt, version: str, into: Path, staging: Path) -> str:
    product = product_of(version)
    fresh = staging / product.name
    (fresh / "root").mkdir(parents=True)
    (fresh / "bin").mkdir()
    found, _ = apt.unpack(product.package, fresh / "root")
    fetch_servers.slim(fresh / "root")
    (fresh / "VERSION").write_text(f"{found}\n", "utf-8")
    final = into / product.name
    if final.exists():
        final.rename(staging / f"{product.name}.old")
    fresh.rename(final)
    write_launcher(final, version, final / "bin" / product.name)
    return fetch_servers.run(str(final / "bin" / product.name), "--version").strip()


def write_launcher(folder: Path, version: str, launcher: Path, *, of_environment: bool = False) -> None:
    """Write a script that starts the interpreter of ``folder`` with its own libc."""
    root = folder / "root"
    loaders = sorted(path.relative_to(root) for path in root.glob("usr/lib/*/ld-linux*.so.[0-9]"))
    if not loaders:
        raise FetchError(f"the packages of Python {version} brought no dynamic loader")
    text = LAUNCHER.format(
        root=root,
        loader=loaders[0],
        libraries=loaders[0].parent,
        argv0='--argv0 "$0" ' if of_environment else "",
        binary=product_of(version).server,
    )
    launcher.unlink(missing_ok=True)
    launcher.write_text(text, "utf-8")
    launcher.chmod(0o755)


def make_environment(into: Path, version: str, environment: Path) -> Path:
    """Make a virtual environment without pip (``pip --python`` installs into it); return its interpreter."""
    folder = into / product_of(version).name
    interpreter = folder / "bin" / f"python{version}"
    write_launcher(folder, version, interpreter)
    # ensurepip is a separate package at Debian; --copies would copy the launcher without its path.
    command = (str(interpreter), "-m", "venv", "--without-pip", "--clear", str(environment))
    subprocess.run(command, check=True)
    for name in ("python", "python3", f"python{version}"):
        write_launcher(folder, version, environment / "bin" / name, of_environment=True)
    return environment / "bin" / "python"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Fetch newer Python interpreters into a folder.")
    parser.add_argument("versions", nargs="*", help=f"of {', '.join(VERSIONS)}; default: all")
    parser.add_argument("--into", type=Path, default=fetch_servers.DEFAULT_INTO, help="default: %(default)s")
    parser.add_argument("--environment", type=Path, help="also make a virtual environment there, of the one version")
    options = parser.parse_args(arguments)
    versions: list[str] = options.versions or list(VERSIONS)
    into: Path = options.into.resolve()
    try:
        fetch(versions, into)
        if options.environment is not None:
            print(make_environment(into, versions[0], options.environment.resolve()))
    except (FetchError, OSError, subprocess.CalledProcessError) as error:
        print(f"fetch_pythons: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
