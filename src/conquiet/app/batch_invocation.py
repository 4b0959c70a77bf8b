"""Call a batch handler of an application with lists, or a handler of single messages in a shared transaction.

    batch=200               handler(orders: list[Order], session)   one call for all, in one transaction
    share_transaction=50    handler(order: Order, session)          a call for each, in savepoints of one transaction

A payload that does not fit fails its message only: the others are handled without it.

On RabbitMQ a call returns True, False, or a list with the outcome of each message; see ``rabbit.batch_results``.
"""

from collections.abc import Callable
from typing import Any

from conquiet.app.invocation import Invocation, MessageLogger, Run, like
from conquiet.app.parameters import Parameter, Source
from conquiet.core.batch_run import Outcome
from conquiet.errors import ConflictError


class BatchInvocation(Invocation):
    """Calls one function for batches of messages. For the arguments see ``Invocation``."""

    def for_processor_batch(self) -> Callable[[list[Any]], Any]:
        """Return the batch handler to register with a ``Processor``."""
        return self._for_processor(self._work(self._call_batch, "for_processor_batch"), self._signature.resources)

    def for_processor_shared_transaction(self) -> Callable[[list[Any]], Any]:
        """Return the batch handler that calls the function for each message, each in its savepoint."""
        work = self._work(self._call_one, "for_processor_shared_transaction")
        return self._for_processor(work, resources=())  # each call opens its own

    def _for_processor(
        self, work: Callable[[list[Run]], Any], resources: tuple[type, ...]
    ) -> Callable[[list[Any]], Any]:
        decode = self._decoder()

        async def handle(contexts: list[Any]) -> list[Outcome] | None:
            runs, outcomes = self._admitted(contexts, decode)
            if not runs:
                return outcomes
            async with self._opened(resources) as made:
                results = work(_with(made, runs))
                return _joined(outcomes, await results if self._signature.is_async else results)

        return like(work, self._entry_point(handle))

    def for_rabbit_batch(self) -> Callable[[list[Any]], Any]:
        """Return the batch syncer to give to a ``RabbitConsumer``."""
        from conquiet.rabbit.batch_results import only_deliveries

        work, resources = self._work(self._call_batch, "for_rabbit_batch"), self._signature.resources

        async def syncer(messages: list[Any]) -> object:
            runs, outcomes = self._admitted(messages, self._message_payload)
            try:
                if not runs:
                    return self._rabbit_outcomes(outcomes, None)
                async with self._opened(resources) as made:
                    with only_deliveries([place for place, outcome in enumerate(outcomes) if outcome is None]):
                        results = work(_with(made, runs))
                        return self._rabbit_outcomes(outcomes, await results if self._signature.is_async else results)
            except ConflictError:  # the consumer repeats the call, or waits for the other run
                raise
            except Exception as error:
                if len(messages) > 1:
                    raise  # the failing message is not known yet: the batch is halved
                return self._refused(error)

        return like(work, self._entry_point(syncer))

    # ------------------------------------------------------------ inside
    def _admitted(self, messages: list[Any], decode: Callable[[Any], Any]) -> tuple[list[Run], list[Outcome]]:
        """Decode payloads. Return a run per valid payload, and an outcome per message."""
        runs: list[Run] = []
        outcomes: list[Outcome] = []
        for message in messages:
            try:
                runs.append(Run(message, decode(message)))
            except Exception as error:  # noqa: BLE001 - a model may raise anything
                outcomes.append(error)
            else:
                outcomes.append(None)
        return runs, outcomes

    async def _call_batch(self, runs: list[Run], session: Any = None) -> object:
        results = self._function(**self._batch_arguments(runs, session))
        return self._checked(await results if self._signature.is_async else results)

    async def _call_one(self, run: Run, session: Any = None) -> object:
        async with self._opened(self._signature.resources) as run.made:
            return await self._call(run, session)

    def _rabbit_outcomes(self, outcomes: list[Outcome], result: object) -> object:
        """Return the result of a batch syncer: True, False or the outcome of each message."""
        if result is False:
            return False
        found = _joined(outcomes, result)
        return True if found is None else [None if one is None else self._instruction(one) for one in found]

    def _instruction(self, error: Exception) -> Exception:
        """Return the instruction to the consumer for the error of one message."""
        from conquiet.rabbit.batch_results import RefusedError

        if isinstance(error, RefusedError):
            return error
        try:
            self._refused(error)
        except Exception as instruction:  # noqa: BLE001 - returned: it is of this message only
            return instruction
        return RefusedError()

    def _batch_arguments(self, runs: list[Run], session: Any) -> dict[str, Any]:
        return {parameter.name: self._batch_value(parameter, runs, session) for parameter in self._signature.parameters}

    def _batch_value(self, parameter: Parameter, runs: list[Run], session: Any) -> Any:
        match parameter.source:
            case Source.PAYLOAD:
                return [run.payload for run in runs]
            case Source.CONTEXT:
                return [run.origin for run in runs]
            case Source.LOGGER:
                return MessageLogger(self._logger, {"event": self._event.name, "messages": len(runs)})
            case _:  # the same for all messages
                return self._value(parameter, runs[0], session)


def _with(made: dict[Any, Any], runs: list[Run]) -> list[Run]:
    for run in runs:
        run.made = made
    return runs


def _joined(outcomes: list[Outcome], results: Any) -> list[Outcome] | None:
    """Return the outcome of each message: of a payload that does not fit, or as the call returned it."""
    if not isinstance(results, list):
        return outcomes if any(outcome is not None for outcome in outcomes) else None
    left = iter(results)
    return [next(left, None) if outcome is None else outcome for outcome in outcomes]
