"""Check optional dependencies when they are used. The error names the extra."""

from importlib.util import find_spec
from typing import Final

from conquiet.errors import MissingExtraError

_EXTRAS: Final = {
    "redis": "redis",
    "hiredis": "redis",
    "sqlalchemy": "mysql",
    "pymysql": "mysql",
    "pika": "rabbit",
    "nacl": "rabbit",
    "cronsim": "scheduler",
    "opentelemetry": "otel",
}


def require_extra(extra: str, *modules: str) -> None:
    """Raise ``MissingExtraError`` unless every module of the extra can be imported.

    A package calls it at the top of its ``__init__``, so that only imports that need the extra fail.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise _missing(extra, missing)


def extra_for(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra of a missing module. None if it belongs to no extra."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(module)
    return _missing(extra, [module]) if extra else None


def _missing(extra: str, modules: list[str]) -> MissingExtraError:
    are = "is" if len(modules) == 1 else "are"
    return MissingExtraError(
        f"this part of conquiet needs {' and '.join(modules)}, which {are} not installed; "
        f"install the extra with: pip install 'conquiet[{extra}]'",
        extra=extra,
    )
