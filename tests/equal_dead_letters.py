"""Dead letters with equal ids in several partitions of one stream."""

from tests.redis_clients import RawRedis

from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.processor.keys import keys_of
from conquiet.processor.partitions import partition_name

PARTITIONS = 3
GROUP = "billing"


def add_equal_dead_letters(client: RawRedis, stream: str, *entry_ids: str) -> list[str]:
    """Add a dead letter with each of these ids to each of three partitions. Return their ids, oldest first.

    The id of the message of a dead letter is ``of `` with the id of the dead letter.
    """
    client.hset(f"{keys_of(stream).base}:partitions", "count", str(PARTITIONS))
    ids = []
    for entry_id in entry_ids:
        for index in range(PARTITIONS):
            ids.append(f"{entry_id}.{index}" if index else entry_id)
            message = f"of {ids[-1]}"
            payload = {"v": 1, "event": f"paid {index}", "id": message, "data": {"of": ids[-1]}}
            record = DeadRecord(
                reason="rejected", event=f"paid {index}", id=message, entry_id="1-1", group=GROUP, payload=payload
            )
            client.xadd(keys_of(partition_name(stream, index)).dead, {"data": encode_record(record)}, id=entry_id)
    for index in range(PARTITIONS):
        client.xgroup_create(partition_name(stream, index), GROUP, id="0", mkstream=True)
    return ids


def messages_in(client: RawRedis, stream: str) -> list[list[bytes]]:
    """Return the entries of each partition."""
    entries = [client.xrange(partition_name(stream, index)) for index in range(PARTITIONS)]
    return [[fields[b"data"] for _, fields in one] for one in entries]


def left_in(client: RawRedis, stream: str) -> list[int]:
    """Return the number of dead letters of each partition."""
    return [client.xlen(keys_of(partition_name(stream, index)).dead) for index in range(PARTITIONS)]
