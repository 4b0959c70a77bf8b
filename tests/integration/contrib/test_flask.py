"""The Flask extension: a message is published if its request commits."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, abort, redirect, stream_with_context
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response as BaseResponse

from conquiet import App, SyncJobContext
from conquiet.app import TestApp
from conquiet.app.emission import AppEmitOptions
from conquiet.contrib.django import emit as django_emit
from conquiet.contrib.flask import FlaskExtension
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.transactional import Outbox

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True), Column("name", String(20), unique=True))


@dataclass
class OrderPaid:
    name: str


@dataclass
class Shop:
    """An application and its web side."""

    app: App
    web: Flask
    extension: FlaskExtension
    engine: Engine
    seen: list[str]

    def post(self, path: str) -> int:
        return int(self.web.test_client().post(path).status_code)

    async def drained(self) -> list[str]:
        async with TestApp(self.app) as t:
            await t.drain()
        return self.seen

    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(ORDERS.c.name)).scalars())


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:  # noqa: C901 - a view for each promise
    url = f"sqlite:///{tmp_path / 'shop.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    engine = create_engine(url)
    METADATA.create_all(engine)
    app = App("shop", redis="redis://127.0.0.1:1/0", database=url)
    seen: list[str] = []

    @app.handler("order.paid")
    def book(order: OrderPaid, session: Session) -> None:
        seen.append(order.name)

    web = Flask("shop")
    extension = FlaskExtension(app, web)

    def order(name: str) -> None:
        extension.session.execute(insert(ORDERS).values(name=name))
        extension.emit("order.paid", OrderPaid(name))

    @web.post("/orders/<name>")
    def create(name: str) -> tuple[str, int]:
        order(name)
        return "", 201

    @web.post("/refused/<name>")
    def refused(name: str) -> tuple[str, int]:
        order(name)
        return "", 422

    @web.post("/aborted/<name>")
    def aborted(name: str) -> tuple[str, int]:
        order(name)
        abort(409)

    @web.post("/failed/<name>")
    def failed(name: str) -> tuple[str, int]:
        order(name)
        raise ValueError

    @web.post("/denied/<name>")
    def denied(name: str) -> tuple[str, int]:
        order(name)
        raise PermissionError

    @web.errorhandler(PermissionError)
    @web.errorhandler(403)
    def log_in(_error: Exception) -> BaseResponse:
        return redirect("/login")

    @web.post("/forbidden/<name>")
    def forbidden(name: str) -> tuple[str, int]:
        order(name)
        abort(403)

    @web.post("/nested/<name>")
    def nested(name: str) -> tuple[str, int]:
        order(name)
        assert web.test_client().get("/empty").status_code == 200
        raise ValueError

    @web.get("/empty")
    def empty() -> str:
        return ""

    @web.post("/redirected/<name>")
    def redirected(name: str) -> tuple[str, int]:
        order(name)
        abort(redirect("/done"))

    @web.post("/streamed/<name>")
    def streamed(name: str) -> Response:
        def body() -> Iterator[str]:
            yield "first"
            order(name)

        return Response(stream_with_context(body()))

    app.create_tables()
    yield Shop(app, web, extension, engine, seen)
    app.assembly.database.sync_engine().dispose()
    engine.dispose()


async def test_a_request_that_succeeds_writes_and_emits(shop: Shop) -> None:
    assert shop.post("/orders/a") == 201

    assert (shop.orders(), await shop.drained()) == (["a"], ["a"])


@pytest.mark.parametrize(("path", "status"), [("refused", 422), ("aborted", 409), ("failed", 500)])
async def test_a_request_that_fails_writes_and_emits_nothing(shop: Shop, path: str, status: int) -> None:
    assert shop.post(f"/{path}/a") == status

    assert (shop.orders(), await shop.drained()) == ([], [])


async def test_an_exception_that_flask_lets_through_rolls_back(shop: Shop) -> None:
    shop.web.testing = True

    with pytest.raises(ValueError):
        shop.post("/failed/a")

    assert (shop.orders(), await shop.drained()) == ([], [])


@pytest.mark.parametrize("path", ["denied", "forbidden"])
async def test_an_exception_that_an_error_handler_redirects_rolls_back(shop: Shop, path: str) -> None:
    """The view ended halfway. The status of the error handler's response does not mean success."""
    assert shop.post(f"/{path}/a") == 302

    assert (shop.orders(), await shop.drained()) == ([], [])


async def test_a_redirect_by_abort_is_committed(shop: Shop) -> None:
    assert shop.post("/redirected/a") == 302

    assert (shop.orders(), await shop.drained()) == (["a"], ["a"])


async def test_a_message_emitted_after_the_commit_is_refused(shop: Shop) -> None:
    """It would be rolled back without an error, after the response has been sent."""
    with pytest.raises(LifecycleError, match="the transaction of this request has ended"):
        shop.web.test_client().post("/streamed/a", buffered=True)

    assert (shop.orders(), await shop.drained()) == ([], [])


async def test_requests_in_one_application_context_are_separate(shop: Shop) -> None:
    """Flask shares ``g`` among them."""
    with shop.web.app_context():
        assert [shop.post(f"/{path}/{path}") for path in ("orders", "denied", "redirected")] == [201, 302, 302]

    assert sorted(await shop.drained()) == ["orders", "redirected"]


async def test_a_request_inside_a_view_leaves_its_transaction_alone(shop: Shop) -> None:
    assert shop.post("/nested/a") == 500

    assert (shop.orders(), await shop.drained()) == ([], [])


def test_flask_may_pass_its_context_with_the_exception(shop: Shop) -> None:
    """Flask 3.2 does."""

    class NextFlask(Flask):
        def handle_user_exception(self, _context: object, error: Exception) -> Any:  # type: ignore[override]
            return super().handle_user_exception(error)

    web = NextFlask("next")
    FlaskExtension(shop.app, web)
    web.register_error_handler(PermissionError, lambda _: "refused")

    with web.test_request_context("/"):
        assert web.handle_user_exception(None, PermissionError()) == "refused"


def test_two_applications_write_into_their_own_databases(shop: Shop, tmp_path: Path) -> None:
    other = App("other", redis="redis://127.0.0.1:1/0", database=f"sqlite:///{tmp_path / 'other.db'}")
    other.declare("order.paid", OrderPaid)
    other.create_tables()
    second = FlaskExtension(other, shop.web)

    @shop.web.post("/both")
    def both() -> str:
        shop.extension.emit("order.paid", OrderPaid("first"))
        second.emit("order.paid", OrderPaid("second"))
        return ""

    assert shop.post("/both") == 200
    waiting = [
        sum(one.waiting for one in Outbox().backlog(app.assembly.database.sync_engine()).values())
        for app in (shop.app, other)
    ]
    other.assembly.database.sync_engine().dispose()
    assert waiting == [1, 1]


async def test_an_emitted_message_has_its_key_and_its_headers(shop: Shop) -> None:
    seen: list[tuple[str | None, str | None]] = []

    @shop.app.handler("order.shipped")
    def ship(order: OrderPaid, ctx: SyncJobContext) -> None:
        seen.append((ctx.key, ctx.headers.get("tenant")))

    @shop.web.post("/shipped")
    def shipped() -> str:
        shop.extension.emit("order.shipped", OrderPaid("a"), key="customer-3", headers={"tenant": "blue"})
        return ""

    assert shop.post("/shipped") == 200
    await shop.drained()
    assert seen == [("customer-3", "blue")]


@pytest.mark.parametrize("emit", [FlaskExtension.emit, django_emit])
def test_an_integration_takes_the_options_of_a_message_in_a_transaction(emit: Callable[..., str]) -> None:
    assert AppEmitOptions.__optional_keys__ - {"id"} <= inspect.signature(emit).parameters.keys()


async def test_a_commit_that_fails_is_an_error_response(shop: Shop) -> None:
    """The unique constraint is met by the second request before a success is sent."""
    assert [shop.post("/orders/a") for _ in range(2)] == [201, 500]

    assert (shop.orders(), await shop.drained()) == (["a"], ["a"])


async def test_a_session_of_the_applications_own_is_committed_by_itself(shop: Shop) -> None:
    sessions: list[Session] = []
    web = Flask("own")
    extension = FlaskExtension(shop.app, session=lambda: sessions[-1])
    extension.init_app(web)

    @web.post("/orders/<name>")
    def create(name: str) -> tuple[str, int]:
        with Session(shop.engine) as session:
            sessions.append(session)
            extension.emit("order.paid", OrderPaid(name))
            if name == "kept":
                session.commit()
        return "", 201

    client: Any = web.test_client()
    assert [client.post(f"/orders/{name}").status_code for name in ("kept", "forgotten")] == [201, 201]
    assert await shop.drained() == ["kept"]


def test_outside_of_a_request_the_sentence_says_what_to_call(shop: Shop) -> None:
    with pytest.raises(LifecycleError, match=r"no request is being handled here: outside of one call app\.emit_sync"):
        shop.extension.emit("order.paid", OrderPaid("a"))


def test_arguments_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="app must be a conquiet App, got a Flask"):
        FlaskExtension(Flask("shop"))  # type: ignore[arg-type]
