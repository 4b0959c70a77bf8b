"""dramatiq: a worker with eight threads in this process."""

import logging
import os
import sys
import time
from typing import Any

os.environ["dramatiq_queue_prefetch"] = sys.argv[4]  # noqa: SIM112 - dramatiq spells it so

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.rabbitmq import RabbitmqBroker  # type: ignore[import-not-found]

url, queue, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
logging.disable(logging.CRITICAL)
broker = RabbitmqBroker(url=url, middleware=[])
dramatiq.set_broker(broker)
times: list[float] = []
# The queue is there already, without dramatiq's arguments.
broker._declare_queue = lambda _queue: None  # noqa: SLF001
broker._declare_dq_queue = lambda _queue: None  # noqa: SLF001
broker._declare_xq_queue = lambda _queue: None  # noqa: SLF001


@dramatiq.actor(queue_name=queue, actor_name="bench")  # type: ignore[untyped-decorator]
def bench(_: dict[str, Any]) -> None:
    times.append(time.perf_counter())
    if len(times) == number:
        print("RESULT", times[-1] - times[0], flush=True)
        os._exit(0)


worker = dramatiq.Worker(broker, worker_threads=8, queues={queue})
worker.start()
time.sleep(160)
