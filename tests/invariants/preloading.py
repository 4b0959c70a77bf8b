"""Load modules in a zygote, which each of its workers would otherwise load after its start. Not a test.

A worker is killed after a few messages. Loading a driver and the packages that load on first use costs it 0.2 s of
processor time, more than its messages.
"""

from importlib import import_module

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine


def preload(db_url: str, *, driver: str = "") -> None:
    """Load the driver of a URL and the modules of a first connection.

    Args:
        db_url: The URL of the workers.
        driver: An async driver to load instead, such as ``asyncmy``.
    """
    if driver and "+pymysql" in db_url:
        create_async_engine(db_url.replace("+pymysql", f"+{driver}"))
    else:
        create_engine(db_url)
    for name in ("conquiet.metrics.registry", "conquiet.transactional", "encodings.ascii", "encodings.idna"):
        import_module(name)
