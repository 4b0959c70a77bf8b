import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from conquiet.app.parameters import SessionKind, Signature, SignatureReader, Source
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError


@dataclass
class Order:
    id: int


class Mailer:
    pass


class Context:
    pass


def read(function: Callable[..., Any]) -> Signature:
    reader = SignatureReader(
        provided=lambda kind: kind is Mailer, special={Context: Source.CONTEXT}, what="handler of 'paid'"
    )
    return reader.read(function)


def test_each_parameter_gets_its_source_by_its_annotation() -> None:
    async def handle(
        order: Order, session: AsyncSession, mailer: Mailer, ctx: Context, log: logging.Logger
    ) -> None: ...

    signature = read(handle)

    assert [parameter.source for parameter in signature.parameters] == [
        Source.PAYLOAD, Source.SESSION, Source.RESOURCE, Source.CONTEXT, Source.LOGGER,
    ]  # fmt: skip
    assert (signature.payload, signature.session, signature.resources) == (Order, SessionKind.ASYNC_SESSION, (Mailer,))
    assert signature.is_async


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [(DbSession, SessionKind.DB_SESSION), (Session, SessionKind.SESSION), (Connection, SessionKind.CONNECTION)],
)
def test_a_plain_function_may_ask_for_each_blocking_session(annotation: Any, kind: SessionKind) -> None:
    def handle(session: annotation) -> None: ...

    assert read(handle).session is kind


def test_a_subclass_of_a_session_is_that_kind_of_session() -> None:
    class OwnSession(AsyncSession):
        pass

    async def handle(session: OwnSession) -> None: ...

    assert read(handle).session is SessionKind.ASYNC_SESSION


def test_annotated_types_count_as_what_they_annotate() -> None:
    def handle(mailer: Annotated[Mailer, "of this app"]) -> None: ...

    assert read(handle).resources == (Mailer,)


def test_a_parameter_with_a_default_and_no_annotation_keeps_its_default() -> None:
    def handle(order: Order, retries=3) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    assert [parameter.name for parameter in read(handle).parameters] == ["order"]


def no_annotation(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def unknown(count: int) -> None: ...


def twice(one: Order, two: Order) -> None: ...


def starred(*orders: Order) -> None: ...


async def blocking(session: Session) -> None: ...


def awaiting(session: AsyncConnection) -> None: ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (no_annotation, "parameter 'order' of the handler of 'paid' has no annotation"),
        (unknown, "parameter 'count' of the handler of 'paid' has no source: int"),
        (twice, "asks for its payload twice, as 'one' and 'two'"),
        (starred, r"takes \*orders: name each parameter"),
        (blocking, "ask for AsyncSession or AsyncConnection, or make it a plain function"),
        (awaiting, "make it an async def, or ask for Session, Connection or DbSession"),
        (5, "must be a function"),
    ],
)
def test_an_object_that_cannot_be_called_is_refused_with_a_sentence(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        read(function)


def test_an_annotation_that_cannot_be_resolved_says_what_to_import() -> None:
    def handle(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="not only under TYPE_CHECKING"):
        read(handle)


def test_an_annotation_that_cannot_be_evaluated_is_named_as_the_fault() -> None:
    def handle(order: "'Order' | None") -> None: ...

    with pytest.raises(ConfigurationError, match="has an annotation that cannot be resolved: unsupported operand"):
        read(handle)
