"""Optional dependencies: absent until used, and then missed with a sentence that helps."""

from importlib.util import find_spec

from conquiet.errors import MissingExtraError


def require_extra(extra: str, *modules: str) -> None:
    """Raise ``MissingExtraError`` unless every module of the extra can be imported.

    Rooms call it at the top of their ``__init__``, so that the first import that needs the extra
    says so and no other does.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"this part of conquiet needs {', '.join(missing)}, which is not installed; "
            f"install it with: pip install 'conquiet[{extra}]'",
            extra=extra,
        )
