"""A web service that writes an order and the message it causes in one ORM transaction.

    POST /orders ─▶ INSERT order + outbox row ─▶ COMMIT: both, or none
                                   │
    relay ─────────────────────────┴─▶ Redis stream "jobs" ─▶ Processor ─▶ ship(): async def, AsyncSession, inbox row

Run it with ``pip install 'conquiet[redis,mysql,mysql-async]' fastapi uvicorn``, a database and a Redis:

    DATABASE_URL=mysql+asyncmy://root@127.0.0.1/shop uvicorn examples.fastapi_orders:create_app --factory
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import Integer, String, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from conquiet import JobContext, Outbox, Processor
from conquiet.transactional import for_processor

outbox = Outbox(targets=["jobs"])  # named once: a typo is refused when a message is added


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """The items that a customer has bought."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(100))
    cents: Mapped[int]
    shipped: Mapped[int] = mapped_column(Integer, default=0)


class NewOrder(BaseModel):
    """The body of POST /orders."""

    customer: str
    cents: int


def create_app(database_url: str | None = None) -> FastAPI:
    """Return the service."""
    engine = create_async_engine(database_url or os.environ["DATABASE_URL"])
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def create_order(new: NewOrder) -> dict[str, int]:
        async with sessions() as session, session.begin():
            order = Order(customer=new.customer, cents=new.cents)
            session.add(order)
            await session.flush()  # the database gives it its id
            await outbox.add_async(session, "jobs", {"order": order.id}, event="order.paid", key=new.customer)
            if new.cents <= 0:
                raise HTTPException(422, "an order costs something")  # rolls back the order and its message
        return {"order": order.id}

    return app


async def ship(ctx: JobContext, session: AsyncSession) -> None:
    """Ship an order once, even if its message is delivered several times."""
    order = (await session.execute(select(Order).where(Order.id == ctx.data["order"]))).scalar_one()
    order.shipped += 1


def create_processor(client: redis.asyncio.Redis, sessions: async_sessionmaker[AsyncSession], stream: str) -> Processor:
    """Return the worker: the inbox row, the order and COMMIT are one transaction, the acknowledgement follows."""
    processor = Processor(client, [stream], group="shipping")
    processor.handler("order.paid")(for_processor(ship, engine=sessions))
    return processor
