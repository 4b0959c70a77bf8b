"""A worker that copies actions into a CRM: run it with the URL of a broker and the name of a queue.

    python examples/rabbit_worker.py amqp://guest:guest@localhost/%2F crm-sync

It ends with exit code 0 on SIGTERM or Ctrl-C, and with 1 when the syncer breaks its contract.
"""

import logging
import sys

from conquiet.rabbit import ActionMessage, run_process


async def syncer(message: ActionMessage) -> bool:
    """Return True when the message is done, False to try it once more and then dead-letter it."""
    if message.get("contact") is None:
        return False
    print("synced action", message["actionId"], flush=True)
    return True


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("pika").setLevel(logging.WARNING)
    _, url, queue = sys.argv
    sys.exit(run_process(url, queue, syncer, concurrency=10, max_retries=5))
