"""docs/api.md is generated from the docstrings, and the docstrings document every parameter."""

import inspect
from typing import Any

import api_docs
import pytest

OBJECTS = list(api_docs.public_objects())
CLASSES = [(f"{module}.{name}", value) for module, name, value in OBJECTS if inspect.isclass(value)]
FUNCTIONS = [(f"{module}.{name}", value) for module, name, value in OBJECTS if inspect.isfunction(value)]
MADE_BY_CONQUIET = {
    "Emit",  # handlers get these two by annotation
    "SyncEmit",
    "Delivery", "JobContext", "JobHandle", "MessageBatch", "MessageContext", "SyncJobContext", "SyncMessageContext",
    "TerminationHandlers", "WorkerPool",
}  # fmt: skip
"""Passed to or returned to the user: their constructors are not part of the promise."""
FREE_KEYWORDS = {"log", "queue", "enqueue", "__call__"}
"""``log`` takes any field of a log record. ``App.queue`` takes the fields of ``RabbitSettings``, as its docstring says:
it is declared without the extra that ``RabbitSettings`` needs. ``DjangoTask`` takes the arguments of its function."""


def methods() -> list[tuple[str, Any]]:
    found = []
    for home, cls in CLASSES:
        for name, value in api_docs.public_methods(cls):
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            found.append((f"{home}.{name}", plain))
    return found


def test_the_page_is_up_to_date() -> None:
    assert api_docs.PAGE.read_text(encoding="utf-8") == api_docs.render(), "run: python scripts/api_docs.py"


def test_every_public_name_of_every_package_is_on_the_page() -> None:
    page = api_docs.PAGE.read_text(encoding="utf-8")

    assert len(OBJECTS) > 100
    assert [name for _, name, _ in OBJECTS if f"### {name}\n" not in page] == []


def test_every_public_name_states_its_promise() -> None:
    assert [place for place, value in [*CLASSES, *FUNCTIONS, *methods()] if not api_docs.summary(value)] == []


def test_every_public_constant_is_explained() -> None:
    constants = [name for _, name, value in OBJECTS if not callable(value)]

    assert constants
    assert [name for name in constants if not api_docs.constant_text(name)] == []


def is_built_by_users(name: str, cls: type) -> bool:
    """Errors are raised by conquiet, and the fields of a record are its documentation."""
    if name in MADE_BY_CONQUIET or issubclass(cls, Exception) or api_docs.is_record(cls):
        return False
    return api_docs.constructor(cls) is not None


BUILT_BY_USERS = [(place, cls) for place, cls in CLASSES if is_built_by_users(cls.__name__, cls)]


@pytest.mark.parametrize(("place", "cls"), BUILT_BY_USERS, ids=[place for place, _ in BUILT_BY_USERS])
def test_help_of_a_class_describes_each_parameter_of_its_constructor(place: str, cls: type[Any]) -> None:
    """``help(cls)`` and ``help(cls.__init__)`` show the signature and the docstring of the class."""
    own = api_docs.annotations_of_function(cls.__init__).keys() & inspect.signature(cls).parameters.keys()

    for documented in (inspect.getdoc(cls) or "", inspect.getdoc(cls.__init__) or ""):
        assert sorted(name for name in own if f"    {name}: " not in documented) == []


def test_no_public_signature_hides_its_parameters() -> None:
    hidden = []
    for place, value in [*CLASSES, *FUNCTIONS, *methods()]:
        if isinstance(value, property) or (inspect.isclass(value) and api_docs.constructor(value) is None):
            continue
        kinds = {each.kind for each in inspect.signature(value).parameters.values()}
        if inspect.Parameter.VAR_KEYWORD in kinds and place.rpartition(".")[2] not in FREE_KEYWORDS:
            hidden.append(place)

    assert hidden == []
