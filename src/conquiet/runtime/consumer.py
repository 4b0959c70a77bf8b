"""``runtime.Consumer``: the engine with a user's handler. SPEC(002).

See docs/decisions/0010.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conquiet.core.batching import batch_settings
from conquiet.core.functions import warn_if_pool_is_smaller
from conquiet.core.signatures import takes_fields_of
from conquiet.core.validation import require_positive, require_text
from conquiet.redis_transport.client import AnyRedis
from conquiet.runtime.engine import Engine
from conquiet.runtime.executor import BatchHandler, HandlerExecutor, MessageHandler
from conquiet.runtime.settings import RuntimeSettings, require_streams, settings_from


class Consumer(Engine):
    """Reads streams as a member of a group and runs a handler for each message, ``concurrency`` of them at a time.

    Args:
        streams: Keys of the streams. They are served fairly.
        redis: A client of ``redis.asyncio`` or ``redis``, plain or for a Redis Cluster. It is neither used nor closed:
            the engine opens three separate connections to the same server (on a cluster: two for each slot that holds
            a stream, and one for each node) and one more for housekeeping, and closes them when it ends.
        handler: ``async def handler(message, ctx)``, or a plain function, which runs in a thread.
        batch: Maximum number of messages per call: ``async def handler(messages, contexts)``. If the handler raises,
            the batch is halved until the failing message is alone, so the handler may see a message again.
        within_s: Deadline for the effect of the first message of a batch, 0.02 s by default. The batch is gathered for
            this time minus the recent batch duration, but for at least half of it.
        concurrency: Maximum number of handlers running concurrently. With ``batch``: of batches.
        group: The consumer group. A missing group is created at the beginning of the stream.
        consumer_id: Name of this consumer in the group, constant while it lives. Default:
            ``consumer-{hostname}-{pid}``, with a suffix for further engines of the process.
        on_exhausted: ``(message, ctx)``, called instead of the handler past ``max_deliveries``. The message
            stays pending unless it calls ``ctx.ack()``. If it is None, the engine only emits an ``error`` event.
        on_malformed: ``(message, ctx)``, called instead of the handler with an entry that is no message or is larger
            than ``max_payload_bytes``; ``message.malformed`` is the reason, and ``message.data`` is empty. The entry
            stays pending unless it calls ``ctx.ack()``, and is passed here again once it is stale.
        settings: All other settings. Its fields may be passed as keywords instead.
    """

    @takes_fields_of(RuntimeSettings)
    def __init__(  # noqa: PLR0913 - user settings, keyword-only
        self,
        *,
        streams: Sequence[str],
        redis: AnyRedis,
        handler: MessageHandler | BatchHandler,
        batch: int | None = None,
        within_s: float | None = None,
        concurrency: int = 1,
        group: str = "processor",
        consumer_id: str | None = None,
        on_exhausted: MessageHandler | None = None,
        on_malformed: MessageHandler | None = None,
        settings: RuntimeSettings | None = None,
        **options: Any,
    ) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._handler = handler
        names = require_streams(streams)
        require_positive("concurrency", concurrency)
        require_text("group", group)
        chosen = settings_from(settings, options)
        executor = HandlerExecutor(
            handler,
            on_exhausted,
            on_malformed,
            threads=self._thread_pool,
            group=group,
            batch=batch_settings(batch, within_s),
        )
        super().__init__(
            streams=names,
            redis=redis,
            executor=executor,
            concurrency=concurrency,
            group=group,
            consumer_id=consumer_id,
            settings=chosen,
        )

    def _before_start(self) -> None:
        warn_if_pool_is_smaller(self._handler, self._concurrency)

    async def _after_end(self) -> None:
        if self._threads is not None:
            # Do not wait: a thread cannot be cancelled. The stop report lists handlers that still run in one.
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _thread_pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="conquiet-handler")
        return self._threads
