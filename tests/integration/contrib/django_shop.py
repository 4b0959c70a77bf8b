"""A Django project in one module, run in a separate process: settings can be set once in a process.

DJANGO_DB=URL python django_shop.py CHECK…

Each check begins with empty tables. The name of a check is printed when it has passed.
"""

import asyncio
import contextlib
import os
import sys
import threading
import types
from typing import Any

import django
import pytest
from django.conf import settings


def database() -> dict[str, Any]:
    """Return Django's settings for the database of the test."""
    given = os.environ["DJANGO_DB"]
    if given.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": given.removeprefix("sqlite:///")}
    from sqlalchemy import make_url

    url = make_url(given)
    kind = {"postgresql": "postgresql", "mysql": "mysql"}[url.get_backend_name()]
    if kind == "mysql":
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)
        pymysql.install_as_MySQLdb()
    return {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": url.database,
        "USER": url.username,
        "PASSWORD": url.password or "",
        "HOST": url.host,
        "PORT": url.port or "",
    }


settings.configure(
    DATABASES={"default": database()},
    INSTALLED_APPS=["conquiet.contrib.django"],
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="urls",
    SECRET_KEY="of a test",
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import DatabaseError, connection, models, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from conquiet import App, RetryPolicy  # noqa: E402
from conquiet.app import TestApp  # noqa: E402
from conquiet.contrib.django import DjangoTransaction, django_url, emit, task  # noqa: E402
from conquiet.errors import ConfigurationError, DatabaseUnavailableError  # noqa: E402
from conquiet.transactional.schema import INBOX_TABLE, OUTBOX_TABLE  # noqa: E402


class Booking(models.Model):  # type: ignore[misc]
    """A row for each booked order."""

    order = models.CharField(max_length=40)

    class Meta:
        """Outside of any Django application."""

        app_label = "shop"

    def __str__(self) -> str:
        return str(self.order)


app = App("shop", redis="redis://127.0.0.1:1/0", database=django_url)


@app.handler("order.paid", retry=RetryPolicy.fixed(1.0, max_attempts=3))
def book(order: dict[str, str], session: DjangoTransaction) -> None:
    Booking.objects.create(order=order["id"])
    if order["id"] == "bad":
        raise ValueError
    emit(app, "order.booked", order)


@app.handler("order.booked")
def booked(order: dict[str, str], session: DjangoTransaction) -> None:
    Booking.objects.create(order=f"receipt {order['id']}")


@task(app)
def remind(order_id: str, *, urgent: bool = False) -> None:
    Booking.objects.create(order=f"reminder {order_id} {urgent}")


def create(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        emit(app, "order.paid", {"id": request.GET["id"]})
        if "fail" in request.GET:
            raise RuntimeError
    return HttpResponse(status=201)


urls = types.ModuleType("urls")
urls.urlpatterns = [path("orders", create)]  # type: ignore[attr-defined]
sys.modules["urls"] = urls


def bookings() -> list[str]:
    return sorted(Booking.objects.values_list("order", flat=True))


async def drain(*deliveries: tuple[str, dict[str, Any]]) -> list[Any]:
    async with TestApp(app) as t:
        for message_id, data in deliveries:
            await t.deliver("order.paid", data, message_id=message_id)
        await t.drain()
        t.clock.advance(60)
        await t.drain()
        return t.dead_letters


def check_request() -> None:
    client = Client(raise_request_exception=False)
    assert client.post("/orders?id=kept").status_code == 201
    assert client.post("/orders?id=lost&fail=1").status_code == 500
    assert asyncio.run(drain()) == []
    assert bookings() == ["kept", "receipt kept"], bookings()


def check_once() -> None:
    assert asyncio.run(drain(("m1", {"id": "a"}), ("m1", {"id": "a"}), ("m2", {"id": "b"}))) == []
    assert bookings() == ["a", "b", "receipt a", "receipt b"], bookings()


def check_rollback() -> None:
    (dead,) = asyncio.run(drain(("m1", {"id": "bad"})))
    assert (dead.attempts, dead.error_type) == (3, "ValueError")
    assert bookings() == []


def check_task() -> None:
    with transaction.atomic():
        remind.enqueue("7", urgent=True)
    try:
        with transaction.atomic():
            remind.enqueue("8")
            raise RuntimeError
    except RuntimeError:
        pass
    remind("now")
    assert asyncio.run(drain()) == []
    assert bookings() == ["reminder 7 True", "reminder now False"], bookings()


def check_without_transaction() -> None:
    sentence = "no transaction is open on Django's database 'default': .*ATOMIC_REQUESTS"
    with pytest.raises(ConfigurationError, match=sentence):
        emit(app, "order.paid", {"id": "a"})
    with pytest.raises(ConfigurationError, match=sentence):
        remind.enqueue("7")


def check_ended_block() -> None:
    with transaction.atomic():
        session = DjangoTransaction()
    with pytest.raises(ConfigurationError, match="no transaction is open on Django's database 'default'"):
        app.emit_sync("order.paid", {"id": "a"}, session=session)


def check_batch() -> None:
    """Each message would fail, and be dead-lettered."""
    other = App("batches", redis="redis://127.0.0.1:1/0", database=django_url)

    @other.handler("order.paid", batch=10)
    def book_all(orders: list[dict[str, str]], session: DjangoTransaction) -> None:
        raise AssertionError

    async def run() -> None:
        async with TestApp(other) as t:
            await t.emit("order.paid", {"id": "a"})
            await t.drain()

    with pytest.raises(ConfigurationError, match="a batch handler cannot have a DjangoTransaction"):
        asyncio.run(run())


def check_lost_connection() -> None:
    """The server ends the connection inside the handler: not the message's fault."""

    def kill(order: dict[str, str], session: DjangoTransaction) -> None:
        Booking.objects.create(order="never")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    app.handler("kill")(kill)

    async def run() -> None:
        async with TestApp(app) as t:
            await t.emit("kill", {})
            await t.drain()

    with pytest.raises(DatabaseUnavailableError):
        asyncio.run(run())
    connection.close()
    assert bookings() == []


def check_hidden_error() -> None:
    """At the COMMIT of a failed transaction PostgreSQL rolls back, and reports no error."""

    def hide(order: dict[str, str], session: DjangoTransaction) -> None:
        Booking.objects.create(order="lost")
        with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    def undo(order: dict[str, str], session: DjangoTransaction) -> None:
        """Django rolls back to the savepoint of the inner block."""
        Booking.objects.create(order="kept")
        with contextlib.suppress(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    assert asyncio.run(delivered("undo", undo)) == []
    assert bookings() == ["kept"]
    (dead,) = asyncio.run(delivered("hide", hide))
    assert dead.error_type == "conquiet.errors.DbWriteError", dead
    assert bookings() == ["kept"]


def check_hidden_deadlock() -> None:
    """The server has rolled back the inbox row and the first booking."""
    keys = [Booking.objects.create(order=order).pk for order in ("a", "b")]
    locked, other_locked = threading.Event(), threading.Event()

    def lock(key: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {Booking._meta.db_table} WHERE id = %s FOR UPDATE", [key])

    def other() -> None:
        """Writes more, so that the server chooses the handler's transaction as the victim."""
        with transaction.atomic():
            Booking.objects.bulk_create(Booking(order="other") for _ in range(50))
            lock(keys[1])
            other_locked.set()
            locked.wait(10)
            lock(keys[0])
        connection.close()

    def hide(order: dict[str, str], session: DjangoTransaction) -> None:
        Booking.objects.create(order="first half")
        other_locked.wait(10)
        lock(keys[0])
        locked.set()
        with contextlib.suppress(DatabaseError):
            lock(keys[1])
        Booking.objects.create(order="second half")

    thread = threading.Thread(target=other)
    thread.start()
    dead = asyncio.run(delivered("deadlock", hide))
    thread.join()
    assert [one.error_type for one in dead] == ["conquiet.errors.ConflictError"]
    assert "second half" not in bookings(), bookings()


async def delivered(event: str, handler: Any) -> list[Any]:
    other = App("hiding", redis="redis://127.0.0.1:1/0", database=django_url)
    other.handler(event, retry=RetryPolicy.fixed(1.0, max_attempts=1))(handler)
    async with TestApp(other) as t:
        await t.emit(event, {})
        await t.drain()
        return t.dead_letters


def main() -> None:
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Booking)
    for name in sys.argv[1:]:
        with connection.cursor() as cursor:
            for table in (Booking._meta.db_table, INBOX_TABLE, OUTBOX_TABLE):
                cursor.execute(f"DELETE FROM {table}")
        globals()[f"check_{name}"]()
        sys.stdout.write(f"{name}\n")


main()
