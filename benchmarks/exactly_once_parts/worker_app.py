"""The app of ``exactly_once.py --processes``: batches of 200 with an effect each, and messages without any.

Run by ``conquiet worker exactly_once_parts.worker_app:app --processes N``; its servers come from the environment.
"""

import os
from typing import Any

from sqlalchemy import Connection

from conquiet import App, JobContext
from exactly_once_parts.common import EVENT, SIZE
from exactly_once_parts.ours import effects_of

KIND = os.environ["EXACTLY_ONCE_KIND"]

app = App(
    "bench",
    redis=os.environ["EXACTLY_ONCE_REDIS"],
    database=os.environ["EXACTLY_ONCE_DB"],
    stream=os.environ["EXACTLY_ONCE_STREAM"],
    group="processor",
)
_effects = effects_of(KIND)


@app.handler(EVENT, batch=SIZE, within_s=0.02)
def book(contexts: list[JobContext], session: Connection) -> None:
    """Write the effects of a batch."""
    session.execute(*_effects(contexts))


@app.handler("nothing")
async def nothing(_data: dict[str, Any]) -> None:
    """Do nothing."""
