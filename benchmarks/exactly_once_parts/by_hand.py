"""A careful hand-written loop: read 200, one transaction with a multi-row inbox insert and effect, one XACK.

It knows no duplicates, no poison, no lease and no stop.
"""

import time
from typing import Any

import psycopg
import pymysql
from sqlalchemy import make_url

from exactly_once_parts.common import GROUP, SIZE, World, payload_of


def timed_by_hand(world: World, count: int) -> float:
    """Return messages per second."""
    stream = world.stream()
    world.fill(stream, count)
    url = make_url(world.url)
    where: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username}
    connection: Any = (
        pymysql.connect(**where, database=url.database)
        if world.kind == "mariadb"
        else psycopg.connect(**where, dbname=url.database)
    )
    write = _write_mariadb if world.kind == "mariadb" else _write_postgres
    client, done = world.client, 0
    began = time.perf_counter()
    with connection.cursor() as cursor:
        while done < count:
            ((_, entries),) = client.xreadgroup(GROUP, "hand", {stream: ">"}, count=SIZE)
            messages = [payload_of(fields) for _, fields in entries]
            write(cursor, stream, messages)
            connection.commit()
            client.xack(stream, GROUP, *[entry for entry, _ in entries])
            done += len(entries)
    rate = count / (time.perf_counter() - began)
    connection.close()
    return rate


def _write_mariadb(cursor: Any, stream: str, messages: list[dict[str, Any]]) -> None:
    rows = ",".join(["(%s,%s,%s,UTC_TIMESTAMP(6))"] * len(messages))
    cursor.execute(
        f"INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) VALUES {rows}",
        [value for message in messages for value in (stream, GROUP, message["id"])],
    )
    rows = ",".join(["(%s,%s)"] * len(messages))
    cursor.execute(
        f"INSERT INTO effect (message_id, cents) VALUES {rows}",
        [value for message in messages for value in (message["id"], message["data"]["cents"])],
    )


def _write_postgres(cursor: Any, stream: str, messages: list[dict[str, Any]]) -> None:
    cursor.execute(
        "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
        "SELECT %s, %s, unnest(%s::bytea[]), statement_timestamp()",
        (stream.encode(), GROUP.encode(), [message["id"].encode() for message in messages]),
    )
    cursor.execute(
        "INSERT INTO effect (message_id, cents) SELECT * FROM unnest(%s::text[], %s::int[])",
        ([message["id"] for message in messages], [message["data"]["cents"] for message in messages]),
    )
