"""The first wrong things that a stranger tries, each with its sentence."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from conquiet import App
from conquiet.errors import ConfigurationError

REDIS = "redis://127.0.0.1:1/0"


@dataclass
class OrderPaid:
    order_id: str


class Clock:
    """Of a type that is neither a model nor provided."""


@dataclass
class Unbuildable:
    clock: Clock


async def test_no_handler() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"the app has no handler, so there is nothing to run: register one with @app\.handler\(event\)",
    ):
        await App("shop", redis=REDIS).run()


def test_two_handlers_for_one_event() -> None:
    app = App("shop", redis=REDIS)

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None: ...

    async def again(order: OrderPaid) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"event 'order\.paid' has a handler already, .*book: an event has one handler in an app\. Call both",
    ):
        app.handler("order.paid")(again)


def test_a_parameter_without_a_source() -> None:
    async def book(order: OrderPaid, clock: Clock) -> None: ...

    with pytest.raises(ConfigurationError, match=r"parameter 'clock' of the handler of 'order\.paid'.*app\.provide\("):
        App("shop", redis=REDIS).handler("order.paid")(book)


def test_a_session_without_a_database() -> None:
    async def book(order: OrderPaid, session: AsyncSession) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"parameter 'session' of the handler of 'order\.paid' is a .*AsyncSession, but the app has no database: "
        r"give App\(…, database=…\), set CONQUIET_DB_URL",
    ):
        App("shop", redis=REDIS).handler("order.paid")(book)


def test_an_async_session_in_a_plain_function() -> None:
    def book(order: OrderPaid, session: AsyncSession) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"parameter 'session' of the handler of 'order\.paid'.*AsyncSession.*async def"
    ):
        App("shop", redis=REDIS, database="sqlite:///shop.db").handler("order.paid")(book)


def test_a_model_that_cannot_be_built() -> None:
    async def book(order: Unbuildable) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"the payload model Unbuildable of event 'order\.paid' cannot be built from JSON"
    ):
        App("shop", redis=REDIS).handler("order.paid")(book)


async def test_an_event_name_with_a_typo() -> None:
    app = App("shop", redis=REDIS)

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"event 'order\.payed' is not known to this app: did you mean 'order\.paid'\?"
    ):
        await app.emit("order.payed", OrderPaid("1"))


def test_a_decode_that_is_given_twice() -> None:
    from conquiet.app import AppSettings
    from conquiet.runtime.settings import RuntimeSettings

    def decode(fields: dict[str, bytes]) -> dict[str, Any]:
        return dict(fields)

    settings = AppSettings(runtime=RuntimeSettings(decode=decode))
    with pytest.raises(ConfigurationError, match="decode is given to App and in its RuntimeSettings: give it once"):
        App("shop", redis=REDIS, decode=decode, settings=settings)
