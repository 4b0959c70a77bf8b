"""Book each order once, and send its receipt if the booking commits: ``conquiet worker shop_app:app``."""

from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, text
from sqlalchemy.ext.asyncio import AsyncSession

from conquiet import App, Emit, RetryPolicy

TABLES = MetaData()
Table("ledger", TABLES, Column("order_id", String(40), nullable=False), Column("cents", Integer, nullable=False))

app = App("shop", tables=TABLES)  # CONQUIET_REDIS_URL and CONQUIET_DB_URL, or conquiet.toml


@dataclass
class OrderPaid:
    """A paid order."""

    order_id: str
    cents: int


@app.handler("order.paid", retry=RetryPolicy.exponential(1.0, max_attempts=8), timeout_s=30)
async def book(order: OrderPaid, session: AsyncSession, emit: Emit) -> None:
    await session.execute(text("INSERT INTO ledger (order_id, cents) VALUES (:order_id, :cents)"), vars(order))
    await emit("mail.receipt", order)  # published if this transaction commits


@app.handler("mail.receipt")
async def send_receipt(order: OrderPaid) -> None:
    print("receipt for", order.order_id, flush=True)
