"""Pages of the documentation with Python code that is run from top to bottom."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"


def code_of(page: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@contextmanager
def run_page(page: str, module: str) -> Iterator[dict[str, Any]]:
    """Run all Python code of a page as one module; yield the names that it defines."""
    names = ModuleType(module)
    sys.modules[module] = names  # annotations are looked up in the module of their function
    try:
        exec(compile("\n".join(code_of(page)), f"docs/{page}", "exec"), names.__dict__)
        yield names.__dict__
    finally:
        del sys.modules[module]
