"""Celery with its solo pool."""

import os
import sys
import time
from typing import Any

from celery import Celery  # type: ignore[import-not-found]
from kombu import Queue  # type: ignore[import-not-found]

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
app = Celery("bench", broker=url.replace("%2F", "/"))
app.conf.update(
    task_queues=[Queue(queue, no_declare=True)],
    task_acks_late=True,
    worker_prefetch_multiplier=prefetch,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)
state = {"seen": 0, "began": 0.0}


@app.task(name="bench")  # type: ignore[untyped-decorator]
def bench(_: dict[str, Any]) -> None:
    state["began"] = state["began"] or time.perf_counter()
    state["seen"] += 1
    if state["seen"] == number:
        print("RESULT", time.perf_counter() - state["began"], flush=True)
        os._exit(0)


app.worker_main(["worker", "-P", "solo", "-l", "CRITICAL", "--without-gossip", "--without-mingle", "-Q", queue])
