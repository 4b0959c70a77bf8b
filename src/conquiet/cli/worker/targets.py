"""From ``module:object`` to what can be run, with a sentence for each way in which that fails."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from conquiet.cli.failures import CommandError
from conquiet.cli.worker.runnables import Runnable, adapt

_KINDS = (
    "a runtime.Consumer, Processor, Scheduler, RabbitConsumer or OutboxRelay, a list of them, or a function "
    "that returns them"
)


def load_object(target: str) -> Any:
    """Import what ``module:object`` names; the current folder comes first.

    Raises:
        CommandError: It cannot be; the text says at which step.
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise CommandError(f"{target!r} is not of the form module:object", fix="write it as app.workers:consumer")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name!r}", fix="check the name, and run it in the folder that holds it"
            ) from error
        raise CommandError(
            f"module {module_name!r} cannot be imported: it needs {error.name!r}", fix=f"install {error.name}"
        ) from error
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise CommandError(
            f"module {module_name!r} cannot be imported: {type(error).__name__} at its import",
            fix="see the traceback with --debug",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise CommandError(
                f"module {module_name!r} has no {path!r}", fix="check the name after the colon"
            ) from error
    return found


def load_runnables(target: str, *, concurrency: int | None) -> list[Runnable]:
    """Return what the target holds, ready to be run.

    Args:
        target: ``module:object``. A function is called and its result taken.
        concurrency: Given to the function as ``concurrency``, or set on what is built already.

    Raises:
        CommandError: It cannot be imported, or is nothing that can be run.
    """
    found = load_object(target)
    if adapt_all(found) is None and callable(found):
        found = _called(target, found, concurrency)
    elif concurrency is not None:
        _set_concurrency(target, found, concurrency)
    runnables = adapt_all(found)
    if not runnables:
        raise CommandError(f"{target} is a {type(found).__name__}, which cannot be run", fix=f"it must be {_KINDS}")
    return runnables


def _set_concurrency(target: str, found: Any, concurrency: int) -> None:
    """Set it on each worker that handles messages; a scheduler or a relay beside them has none."""
    workers = found if isinstance(found, list | tuple) else [found]
    setters = [worker.set_concurrency for worker in workers if hasattr(worker, "set_concurrency")]
    if not setters:
        raise CommandError(f"{target} has no concurrency", fix="leave --concurrency out, or give --processes")
    for setter in setters:
        setter(concurrency)


def _called(target: str, factory: Any, concurrency: int | None) -> Any:
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
            f"{target} failed with {type(error).__name__}", fix="see the traceback with --debug"
        ) from error


def adapt_all(found: object) -> list[Runnable] | None:
    """Return the faces of one worker or of a list of them; None if anything else is among them."""
    workers = list(found) if isinstance(found, list | tuple) else [found]
    faces = [adapt(worker) for worker in workers]
    return None if not faces or any(face is None for face in faces) else [face for face in faces if face is not None]
