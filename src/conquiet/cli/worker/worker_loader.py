"""Load the workers that ``module:object`` names, with one sentence for each way in which that fails."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conquiet.cli.errors import CommandError, fix_of
from conquiet.core.lifecycle import SupportsConcurrency, SupportsParts, SupportsServerWait, Worker, importing
from conquiet.errors import ConfigurationError, LifecycleError

_KINDS = (
    "an App, a runtime.Consumer, Processor, Scheduler, RabbitConsumer, QueueWorker or OutboxRelay, a list of them, or "
    "a function that returns them"
)


def load_object(target: str) -> Any:
    """Import what ``module:object`` names; the current folder comes first.

    Raises:
        CommandError: It cannot be imported; the text names the step.
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise CommandError(f"{target!r} is not of the form module:object", fix="write it as app.workers:consumer")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with importing():
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name!r}", fix="check the name, and run it in the folder that holds it"
            ) from error
        raise CommandError(
            f"module {module_name!r} cannot be imported: it needs {error.name!r}", fix=f"install {error.name}"
        ) from error
    except (ConfigurationError, LifecycleError) as error:  # our own text: it quotes no value
        raise CommandError(
            f"module {module_name!r} cannot be imported{_place_of(error)}: {error}",
            fix=fix_of(error) or "correct it there",
        ) from error
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise CommandError(
            f"module {module_name!r} cannot be imported: {type(error).__name__} at its import{_place_of(error)}",
            fix="run with --debug for the traceback",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise CommandError(
                f"module {module_name!r} has no {path!r}", fix="check the name after the colon"
            ) from error
    return found


def _place_of(error: BaseException) -> str:
    """Return the file and the line where an error of the user's code came from. Its text may hold anything."""
    if isinstance(error, SyntaxError) and error.filename:
        path, line = error.filename, error.lineno
    else:
        # The innermost frame below the current folder is the user's own; below it are libraries.
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]
        if not own:
            return ""
        path, line = own[-1].filename, own[-1].lineno
    shown = Path(path)
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f" ({shown}, line {line})"


def load_workers(target: str, *, concurrency: int | None, only: Sequence[str] = ()) -> list[Worker]:
    """Return the workers of the target.

    Args:
        target: ``module:object``. A function is called and its result taken.
        concurrency: Passed to the function as ``concurrency``, or set on workers that are built already.
        only: Parts of an App to run; empty runs all.

    Raises:
        CommandError: It cannot be imported, or is not a worker.
    """
    found = load_object(target)
    if not find_workers(found) and callable(found):
        found = _call_factory(target, found, concurrency)
    elif concurrency is not None:
        _set_concurrency(target, found, concurrency)
    workers = find_workers(found)
    if not workers:
        raise CommandError(f"{target} is a {type(found).__name__}, which cannot be run", fix=f"it must be {_KINDS}")
    for worker in workers:
        if isinstance(worker, SupportsServerWait):
            worker.set_wait_s(0.0)  # the supervisor waits, by --wait-s
    if only:
        _set_only(target, workers, only)
    return workers


def _set_only(target: str, workers: list[Worker], only: Sequence[str]) -> None:
    for worker in workers:
        if not isinstance(worker, SupportsParts):
            raise CommandError(f"{target} has no parts to choose from", fix="--only is for an App: leave it out")
        worker.set_only(only)


def _set_concurrency(target: str, found: Any, concurrency: int) -> None:
    """Set it on each worker that handles messages. A scheduler or a relay has no concurrency."""
    workers = found if isinstance(found, list | tuple) else [found]
    settable = [worker for worker in workers if isinstance(worker, SupportsConcurrency)]
    if not settable:
        raise CommandError(f"{target} has no concurrency", fix="leave --concurrency out, or give --processes")
    for worker in settable:
        worker.set_concurrency(concurrency)


def _call_factory(target: str, factory: Any, concurrency: int | None) -> Any:
    arguments: dict[str, int] = {}
    if concurrency is not None:
        if "concurrency" not in inspect.signature(factory).parameters:
            raise CommandError(
                f"{target} takes no concurrency",
                fix="give the function a parameter of that name, or leave the flag out",
            )
        arguments["concurrency"] = concurrency
    try:
        return factory(**arguments)
    except Exception as error:
        raise CommandError(
            f"{target} failed with {type(error).__name__}{_place_of(error)}", fix="run with --debug for the traceback"
        ) from error


def find_workers(found: object) -> list[Worker]:
    """Return one worker or a list of them as a list; an empty list if anything else is among them."""
    candidates = list(found) if isinstance(found, list | tuple) else [found]
    workers = [one for one in candidates if isinstance(one, Worker) and not isinstance(one, type)]
    return workers if len(workers) == len(candidates) else []
