"""``conquiet dev``: run worker, relay, scheduler and web application with reload; start servers if none are given."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from conquiet.cli.errors import CommandError
from conquiet.core.server_urls import DB, REDIS, configured_url

FOLDER: Final = ".conquiet"
_STOP_S: Final = 15.0


def dev(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App.")],
    web: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:OBJECT", help="A FastAPI, Starlette or Flask application; or manage.py of Django."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the web application.")] = 8000,
    reload: Annotated[bool, typer.Option(help="Restart when a .py file in this folder changes.")] = True,
) -> None:
    """Run an App for development: handlers, relay, scheduler, and the web application if named.

    Without CONQUIET_REDIS_URL (or redis_url in conquiet.toml) a private Redis or Valkey is started; its data is deleted
    at the end. Without CONQUIET_DB_URL a SQLite file in the folder .conquiet is used. Missing tables are created.
    Everything listens on loopback only. Not for production: see 'conquiet worker'.

    Exit codes: 0 ended by a signal, 1 a process had to be killed, 2 it could not start.

    Examples:
        conquiet dev shop:app

        conquiet dev shop:app --web shop:api

        conquiet dev shop.worker:app --web manage.py
    """
    from conquiet.cli.worker.supervisor import ProcessSupervisor
    from conquiet.cli.worker.supervisor_settings import SupervisorSettings

    with ExitStack() as stack:
        stack.enter_context(_redis())
        _database()
        _create_tables(target)
        if web is not None:
            stack.enter_context(_web(web, port, reload=reload))
        code = ProcessSupervisor(SupervisorSettings(target=target, reload=reload)).run()
    raise typer.Exit(code)


@contextmanager
def _redis() -> Iterator[None]:
    if configured_url(REDIS):
        typer.echo(f"conquiet: using the Redis of {REDIS} or conquiet.toml", err=True)
        yield
        return
    from conquiet.cli.private_server import private_server
    from conquiet.testing.redis import RedisServer

    fix = f"set {REDIS}, or pip install 'conquiet[embedded]'"
    with private_server(RedisServer, "there is no Redis to use: none is given", fix=fix) as server:
        os.environ[REDIS] = server.url
        typer.echo(f"conquiet: {server.name} {server.version} at {server.url}, for this run", err=True)
        yield


def _database() -> None:
    if configured_url(DB):
        typer.echo(f"conquiet: using the database of {DB} or conquiet.toml", err=True)
        return
    folder = Path(FOLDER)
    folder.mkdir(exist_ok=True)
    os.environ[DB] = f"sqlite:///{folder.resolve() / 'dev.db'}"
    typer.echo(f"conquiet: SQLite file {folder / 'dev.db'}", err=True)


def _create_tables(target: str) -> None:
    """Create tables in a separate process: an import of the app in this one would not be reloaded."""
    done = subprocess.run(  # noqa: S603 - given by the user
        [sys.executable, "-m", "conquiet.cli", "db", "init", target], check=False, stdout=subprocess.DEVNULL
    )
    if done.returncode:
        raise typer.Exit(done.returncode)  # it has printed the reason


@contextmanager
def _web(target: str, port: int, *, reload: bool) -> Iterator[None]:
    if target.endswith(".py"):
        if not Path(target).is_file():
            raise CommandError(f"there is no file {target}", fix="run it in the folder that holds manage.py")
        words = [target, "runserver", f"127.0.0.1:{port}", *([] if reload else ["--noreload"])]
    else:
        words = ["-m", "conquiet.cli.dev.web", target, str(port), "reload" if reload else "once"]
    process = subprocess.Popen([sys.executable, *words], process_group=0)  # noqa: S603 - given by the user
    typer.echo(f"conquiet: {target} at http://127.0.0.1:{port}", err=True)
    try:
        yield
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the web server and the child process of its reloader."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
