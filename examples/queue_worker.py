"""A hand-written worker: read, do the work, acknowledge. Stops on SIGTERM and Ctrl-C.

REDIS_URL=redis://localhost:6379/0 python examples/queue_worker.py [how many messages]
"""

import os
import socket
import sys

import redis

from conquiet import QueueConfig, QueueConsumer
from conquiet.errors import MalformedMessageError


def main() -> None:
    client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
    left = int(sys.argv[1]) if len(sys.argv) > 1 else -1
    # The name is the same after a restart and unique among live processes: one worker per host here.
    config = QueueConfig("orders", "billing", f"worker-{socket.gethostname()}", block_ms=1_000)
    with QueueConsumer(client, config, enable_signal_handlers=True) as consumer:
        # The entries that this worker had in flight when it was killed come first.
        after = "0-0"
        while (batch := consumer.recover_own(after=after)).last_id is not None:
            for message in batch:
                print("again:", message.payload)
                consumer.ack(message)
            after = batch.last_id
        while left != 0:
            try:
                message = next(consumer.iter_messages())
            except MalformedMessageError as error:
                print("put aside:", error.message_id, error.reason)
                consumer.ack_id(str(error.message_id))
                continue
            except StopIteration:
                break
            print("order:", message.payload)
            consumer.ack(message)
            left -= 1


if __name__ == "__main__":
    main()
