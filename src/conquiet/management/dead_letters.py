"""Dead letters of the processor's streams, for operators: synchronous, one call at a time.

What each call does and promises is said in ``conquiet.processor.dead_letters``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.errors import NoSuchStreamError
from conquiet.kernel.redaction import printable
from conquiet.management.asynchronous import with_redis

if TYPE_CHECKING:
    from conquiet.processor import DeadFilter, DeadGroup, DeadMessage, ReplayReport

T = TypeVar("T")

_PAGE = 200


class StreamDeadLetters:
    """The dead letters of one stream.

    Args:
        url: The Redis they are in.
        stream: The stream the messages were in.
    """

    def __init__(self, url: str, stream: str) -> None:
        self._url = url
        self._stream = stream

    def oldest(self, *, limit: int | None, where: "DeadFilter") -> "Sequence[DeadMessage]":
        """Return the oldest ``limit`` that are meant, None is all of them."""

        async def work(letters: Any) -> "Sequence[DeadMessage]":
            found: list[DeadMessage] = []
            cursor: str | None = None
            page_size = _PAGE if limit is None else min(_PAGE, max(limit, 20))
            while limit is None or len(found) < limit:
                page = await letters.list(cursor=cursor, limit=page_size, where=where)
                found += page.items
                cursor = page.cursor
                if cursor is None:
                    break
            return found[:limit]

        return self._with(work)

    def show(self, dead_id: str) -> "DeadMessage":
        """Return one with its whole story.

        Raises:
            NoSuchStreamError: It is gone, or never was.
        """

        async def work(letters: Any) -> "DeadMessage | None":
            found: DeadMessage | None = await letters.show(dead_id)
            return found

        found = self._with(work)
        if found is None:
            raise NoSuchStreamError(
                f"stream {printable(self._stream)!r} has no dead letter {printable(dead_id)!r}", stream=self._stream
            )
        return found

    def groups(self) -> "Sequence[DeadGroup]":
        """Return what they died of, most frequent first."""

        async def work(letters: Any) -> "Sequence[DeadGroup]":
            found: Sequence[DeadGroup] = await letters.groups()
            return found

        return self._with(work)

    def replay(
        self,
        where: "DeadFilter",
        *,
        dry_run: bool,
        rate_per_s: float | None,
        limit: int | None,
        group: str | None = None,
        on_progress: "Callable[[ReplayReport], None] | None" = None,
    ) -> "ReplayReport":
        """Bring them back to the end of their stream, each in one step, for the group they died in or for ``group``."""

        async def work(letters: Any) -> "ReplayReport":
            done: ReplayReport = await letters.replay(
                where, dry_run=dry_run, rate_per_s=rate_per_s, limit=limit, group=group, on_progress=on_progress
            )
            return done

        return self._with(work)

    def discard(self, where: "DeadFilter", *, dry_run: bool, limit: int | None) -> int:
        """Delete the oldest ``limit`` of them for good, None is all."""

        async def work(letters: Any) -> int:
            return int(await letters.discard(where, dry_run=dry_run, limit=limit))

        return self._with(work)

    def _with(self, work: Callable[[Any], Awaitable[T]]) -> T:
        from conquiet.processor import DeadLetters

        return with_redis(self._url, lambda client: work(DeadLetters(client, self._stream)))
