"""Orders from RabbitMQ to a ledger, with money that adds up, although workers are interrupted at bad moments.

    RabbitMQ ─▶ take_order: debit the account, outbox row, inbox row ─▶ COMMIT ─▶ ack
                                        │
                 relay: outbox ─▶ Redis stream ─▶ book: credit the ledger, inbox row ─▶ COMMIT ─▶ ack

Every order is published to RabbitMQ twice, as an anxious producer would. The relay is broken off once between
publishing and deleting, so its batch goes out twice. One ledger worker "crashes" between commit and ack, so its
message is delivered again. In the end the books must agree to the cent.

Run it: it starts private servers for itself (``pip install 'conquiet[all]'``, and the servers' programs).

    python examples/exactly_once_orders.py
"""

import asyncio
import json
import random
from typing import Any

import pika
import redis
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet import DbSession, Inbox, Outbox, OutboxRelay, QueueConfig, QueueConsumer, QueueMessage
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.testing import MySQLServer, RabbitMQServer, RedisServer
from conquiet.transactional import ToStream, by_outbox_id, create_tables, for_rabbit

ORDERS = 40
ACCOUNTS = 4
OPENING_CENTS = 100_000
LEDGER = "ledger"

outbox = Outbox()


# ------------------------------------------------------------------ the business
def take_order(order: dict[str, Any], session: DbSession) -> None:
    """Debit the customer and add a ledger message: one transaction, both or none."""
    session.execute(
        "UPDATE account SET cents = cents - :cents WHERE id = :id", {"cents": order["cents"], "id": order["account"]}
    )
    outbox.add(session, "ledger", {"order": order["order"], "cents": order["cents"]}, key=str(order["account"]))


def book(msg: QueueMessage, session: DbSession) -> None:
    """Credit the ledger."""
    session.execute("UPDATE ledger SET cents = cents + :cents", {"cents": msg.payload["cents"]})


# ------------------------------------------------------------------ the three stages
async def take_orders(amqp_url: str, engine: Engine) -> None:
    """RabbitMQ to MySQL. The order number identifies an order that is sent several times."""
    syncer = for_rabbit(take_order, engine=engine, key=lambda order: str(order["order"]))
    accept_all = SchemaRegistry(built_in=False).register_default()
    async with RabbitConsumer(amqp_url, "orders", syncer, schemas=accept_all, concurrency=2) as consumer:
        while consumer.count.ack < 2 * ORDERS:  # noqa: ASYNC110 - for a demonstration, looking is enough
            await asyncio.sleep(0.02)
    print(f"orders: {2 * ORDERS} deliveries, {ORDERS} orders")


def relay_to(client: redis.Redis, engine: Engine) -> None:
    """MySQL to Redis. The first relay is interrupted after publishing; the second publishes again."""

    class Interrupted(ToStream):
        def publish(self, messages: Any) -> Any:
            super().publish(messages)
            raise KeyboardInterrupt

    try:
        with OutboxRelay(engine, {"ledger": Interrupted(client, LEDGER)}, batch=10) as relay:
            relay.relay_once()
    except KeyboardInterrupt:
        print("relay: interrupted between publishing and deleting")
    with OutboxRelay(engine, {"ledger": ToStream(client, LEDGER)}) as relay:
        published = 0
        while published < ORDERS:  # the first relay's rows stay locked until the server has noticed its end
            published += relay.drain().published
        print(f"relay: {published} rows published")


def keep_the_ledger(ledger: QueueConsumer, engine: Engine) -> None:
    """Redis to MySQL. Messages of one outbox row are one message, and one worker crashes before its ack."""
    inbox = Inbox(key=by_outbox_id)
    doomed = ledger.next()
    assert doomed is not None
    with DbSession(engine) as session, inbox.once(session, doomed) as first_time:
        if first_time:
            book(doomed, session)
    print("ledger: a worker died between commit and ack")  # and so its message is still pending

    def handle(msg: QueueMessage) -> None:
        with DbSession(engine) as session, inbox.once(session, msg) as first_time:
            if first_time:
                book(msg, session)
        ledger.ack(msg)

    for unfinished in ledger.recover_own():  # the first step of a restarted worker
        handle(unfinished)
    while (new := ledger.next(block_ms=50)) is not None:
        handle(new)


# ------------------------------------------------------------------ the stage itself
def prepare(engine: Engine, amqp_url: str) -> int:
    """Open the accounts and send the orders, each of them twice. Returns what they are worth."""
    create_tables(engine)
    with DbSession(engine) as session:
        session.execute("CREATE TABLE account (id INT PRIMARY KEY, cents BIGINT NOT NULL) ENGINE=InnoDB")
        session.execute("CREATE TABLE ledger (cents BIGINT NOT NULL) ENGINE=InnoDB")
    with DbSession(engine) as session:
        session.execute("INSERT INTO ledger VALUES (0)")
        for account in range(ACCOUNTS):
            session.execute("INSERT INTO account VALUES (:id, :cents)", {"id": account, "cents": OPENING_CENTS})
    rng = random.Random(7)
    orders = [{"order": n, "account": n % ACCOUNTS, "cents": rng.randint(1, 2_000)} for n in range(ORDERS)]
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    for order in (*orders, *orders):
        channel.basic_publish("", "orders", json.dumps(order).encode())
    connection.close()
    return sum(order["cents"] for order in orders)


def main(amqp_url: str, db_url: str, redis_url: str) -> None:
    engine = create_engine(db_url)
    worth = prepare(engine, amqp_url)
    asyncio.run(take_orders(amqp_url, engine))
    config = QueueConfig(LEDGER, "bookkeeping", "worker-1")
    with redis.Redis.from_url(redis_url) as client, QueueConsumer(client, config) as ledger:
        relay_to(client, engine)
        keep_the_ledger(ledger, engine)
    with DbSession(engine) as session:
        accounts = session.execute_scalar("SELECT SUM(cents) FROM account")
        booked = session.execute_scalar("SELECT cents FROM ledger")
    engine.dispose()
    print(f"accounts: {accounts} cents, ledger: {booked} cents")
    assert booked == worth, f"the ledger should have {worth}"
    assert accounts + booked == ACCOUNTS * OPENING_CENTS
    print("the books agree")


if __name__ == "__main__":
    with RabbitMQServer() as rabbit, MySQLServer() as mysql, RedisServer() as broker:
        main(rabbit.url, mysql.url, broker.url)
