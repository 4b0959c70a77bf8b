"""The servers that fetch_servers.py fetches, and the sh scripts that start their programs."""

from dataclasses import dataclass

# --inhibit-cache: a library missing from the root must fail, not be borrowed from the machine.
LAUNCHER = """\
#!/bin/sh
# Written by scripts/fetch_servers.py. Finds everything from its own place, so the folder may move.
root=$(dirname -- "$(readlink -f -- "$0")")/../root
root=$(cd -- "$root" && pwd -P) || exit 127
{prelude}exec "$root/{loader}" --inhibit-cache --library-path "$root/{libraries}" "$root/{binary}" "$@"
"""

# The mounts are seen by this process alone and go with it. Data lies in /tmp, as with every private server.
CHROOT_LAUNCHER = """\
#!/bin/sh
# Written by scripts/fetch_servers.py. Finds everything from its own place, so the folder may move.
root=$(dirname -- "$(readlink -f -- "$0")")/../root
root=$(cd -- "$root" && pwd -P) || exit 127
exec unshare -m sh -c 'for each in proc dev tmp; do mount --bind "/$each" "$0/$each" || exit 1; done
    exec chroot "$0" /{binary} "$@"' "$root" "$@"
"""

# mysqld insists on its defaults options being first.
MYSQLD_PRELUDE = """\
case ${1-} in
--no-defaults | --defaults-file=* | --defaults-extra-file=*) first=$1 && shift ;;
*) first= ;;
esac
set -- ${first:+"$first"} --basedir="$root/usr" --lc-messages-dir="$root/usr/share/mysql" "$@"
"""


@dataclass(frozen=True, slots=True)
class Product:
    """One server: the package that brings it, the programs to make callable, and what else its root needs.

    Attributes:
        system: Packages of a root that is entered by chroot: what the server's scripts call. None are needed where
            the server is one program.
    """

    name: str
    package: str
    server: str
    extras: tuple[str, ...] = ()
    prelude: str = ""
    system: tuple[str, ...] = ()


PRODUCTS = {
    product.name: product
    for product in (
        Product("mysql", "mysql-server-core", "usr/sbin/mysqld", prelude=MYSQLD_PRELUDE),
        Product("redis", "redis-server", "usr/bin/redis-server", ("usr/bin/redis-cli",)),
        Product("valkey", "valkey-server", "usr/bin/valkey-server", ("usr/bin/valkey-cli",)),
        Product(
            "rabbitmq",
            "rabbitmq-server",
            "usr/lib/rabbitmq/bin/rabbitmq-server",
            ("usr/lib/rabbitmq/bin/rabbitmqctl", "usr/bin/epmd"),
            system=("base-files", "bash", "coreutils", "dash", "grep", "hostname", "libc-bin", "mawk", "procps", "sed"),
        ),
    )
}


def launcher_text(product: Product, binary: str, loader: str) -> str:
    """Write the sh script that runs a binary of the root with the root's own libc."""
    libraries = loader.rpartition("/")[0]
    prelude = product.prelude if binary == product.server else ""
    return LAUNCHER.format(prelude=prelude, loader=loader, libraries=libraries, binary=binary)


def chroot_launcher_text(binary: str) -> str:
    """Write the sh script that runs a program inside the root."""
    return CHROOT_LAUNCHER.format(binary=binary)
