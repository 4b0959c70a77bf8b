"""Run a batch, find a failing member by bisection, and commit the others.

A call with several members takes effect entirely or not at all (one transaction). If it fails, the batch is halved:

    200 fail ─▶ 100 of them ─┬─ succeed: the failing member is in the other 100, which are halved next
                             └─ fail: it is in these 100; the other 100 wait
    ... until one is left. It runs alone, and its error is its outcome. Then all waiting members run in one call.

One failing member costs a batch of 200 at most ten extra calls. Several failing members are found one after the other.
The caller defines a call: ``transactional`` makes all calls of a search in savepoints of one transaction.

    error of a call                     effect
    InfrastructureError                 not caused by a member: it is the outcome of all undecided members
    MessageInProgressError              another run holds a member's inbox row: one call for each member
    ConflictError, the first one        the same call is repeated: two batches conflicted
    a member has lost its lease         it is removed, and the call is repeated without it
    any other                           the batch is halved

This module imports no broker and no database.

See docs/decisions/0044.
"""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, Generic, TypeVar

from conquiet.core.functions import reject_unawaited
from conquiet.core.threads import run_in_thread
from conquiet.core.worker_pool import Continuation, start_in_context
from conquiet.errors import ConfigurationError, ConflictError, InfrastructureError, MessageInProgressError

M = TypeVar("M")
T = TypeVar("T")

Outcome = Exception | None
"""None: the member has taken effect, in this run or an earlier one."""

Outcomes = Sequence[Outcome]


class _Undecided(Exception):  # noqa: N818 - not raised: marks a member without an outcome
    """The member has no outcome yet."""


_UNDECIDED: Final = _Undecided()


class BatchRun(Generic[M]):
    """Runs the members of one batch and returns an outcome for each.

    Args:
        members: The members.
        call: Runs some of them. Returns None if all succeeded, or an outcome for each. Raises if nothing took effect.
        lost: Returns an error for a member that must not run any more (its lease was lost), else None.
    """

    def __init__(
        self,
        members: Sequence[M],
        call: Callable[[list[M]], Awaitable[Any]],
        *,
        lost: Callable[[M], Outcome] = lambda _member: None,
    ) -> None:
        self._members = members
        self._call = call
        self._lost = lost
        self._outcomes: list[Outcome] = [_UNDECIDED] * len(members)
        self._shared: InfrastructureError | None = None
        self._met_conflict = False

    async def run(self) -> list[Outcome]:
        """Return the outcome of each member. Raises only a cancellation or an error that ends the process."""
        await self._settle(list(range(len(self._members))))
        return self._outcomes

    async def search(self) -> list[Outcome]:
        """Return the outcome of each member after a failed call with all of them. The first call takes one half."""
        await self._search(list(range(len(self._members))))
        return self._outcomes

    async def _settle(self, positions: list[int]) -> None:
        error = await self._try(positions)
        if isinstance(error, MessageInProgressError):
            for position in self._open(positions):
                await self._try([position])
        elif error is not None:
            await self._search(self._open(positions))

    async def _search(self, suspects: list[int]) -> None:
        """Find the failing member of a group that failed as a whole, then run the others."""
        waiting: list[list[int]] = []
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            if await self._try(half) is not None:
                waiting.append(rest)
                suspects = self._open(half)
            elif any(self._outcomes[position] is not None for position in half):
                waiting.append(rest)  # found: it was alone, or the call returned its error
                suspects = []
            else:
                suspects = rest
        await self._try(suspects)
        others = [position for group in waiting for position in group]
        if await self._try(others) is None:
            return
        if len(waiting) == 1:
            await self._search(self._open(others))
        else:
            for group in waiting:  # several members fail: continue with the known groups
                await self._settle(self._open(group))

    async def _try(self, positions: list[int]) -> Exception | None:
        """Run these in one call. Return its error if nothing took effect and the failing member is unknown."""
        while positions := self._held(positions):
            if self._shared is not None:
                self._record(positions, [self._shared] * len(positions))
                return None
            try:
                result = await self._call([self._members[position] for position in positions])
                self._record(positions, _checked(result, len(positions)))
            except InfrastructureError as error:
                self._shared = error
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                if len(self._held(positions)) < len(positions) or self._may_repeat(error):
                    continue
                if len(positions) > 1:
                    return error
                self._outcomes[positions[0]] = error
                return None
            else:
                return None
        return None

    def _may_repeat(self, error: Exception) -> bool:
        if isinstance(error, MessageInProgressError) or not isinstance(error, ConflictError) or self._met_conflict:
            return False
        self._met_conflict = True
        return True

    def _held(self, positions: list[int]) -> list[int]:
        """Return the positions that may run. Record the outcome of the others."""
        held = []
        for position in positions:
            lost = self._lost(self._members[position])
            if lost is None:
                held.append(position)
            else:
                self._outcomes[position] = lost
        return held

    def _open(self, positions: list[int]) -> list[int]:
        return [position for position in positions if self._outcomes[position] is _UNDECIDED]

    def _record(self, positions: list[int], outcomes: Outcomes) -> None:
        for position, outcome in zip(positions, outcomes, strict=True):
            self._outcomes[position] = outcome


async def call_batch_handler(
    handler: Callable[..., Any], *arguments: Any, is_async: bool, threads: Callable[[], Executor]
) -> Any:
    """Call a batch handler, a plain function in a thread. Return its result. It has separate context variables.

    Raises:
        ConfigurationError: An ``async def`` handler returned an awaitable.
    """
    if not is_async:
        return await run_in_thread(threads(), handler, *arguments)
    result = start_in_context(handler(*arguments))
    if type(result) is Continuation:
        result = await result
    reject_unawaited(result)
    return result


def _checked(result: object, number: int) -> Outcomes:
    """Return the outcomes from the result of a call. A list without exceptions is ignored: it has another meaning."""
    if not isinstance(result, list) or not any(isinstance(one, Exception) for one in result):
        return [None] * number
    if len(result) != number or not all(one is None or isinstance(one, Exception) for one in result):
        raise ConfigurationError(
            "a batch handler that returns exceptions returns a list with None or an exception for each of its "
            f"{number} messages, in their order"
        )
    return result
