"""Three ways to enqueue: one message, many messages, and a message that may be sent again safely.

REDIS_URL=redis://localhost:6379/0 python examples/queue_producer.py
"""

import os

import redis

from conquiet import QueueConfig, RedisStreamsQueue
from conquiet.errors import QueueError


def main() -> None:
    client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
    with RedisStreamsQueue(client, QueueConfig("orders", "billing", "producer")) as queue:
        print("one:", queue.enqueue({"order": 1, "amount": "19.99"}))
        print("many:", len(queue.enqueue_many({"order": n, "amount": "5.00"} for n in range(2, 5))))

        # The same key adds one entry only, so the message may be sent again after a lost reply.
        payment = {"order": 5, "amount": "7.50"}
        try:
            first = queue.enqueue(payment, idempotency_key="payment-5")
        except QueueError as error:
            if not error.in_doubt:
                raise
            first = "unknown"
        again = queue.enqueue(payment, idempotency_key="payment-5")
        print("once:", first == again)
        print("backlog:", queue.backlog().length)


if __name__ == "__main__":
    main()
