"""An extension of griffe: names that a stub imports are public, as for type checkers.

griffe has no rule for ``from module import name as name`` itself. See ``conquiet.core.lazy_exports``.
"""

from pathlib import Path
from typing import Any

import griffe


class PublicStubs(griffe.Extension):
    """Mark the imports of stubs as public."""

    def on_alias_instance(self, *, alias: griffe.Alias, agent: Any, **_: Any) -> None:
        """Mark one import."""
        if Path(agent.filepath).suffix == ".pyi":
            alias.public = True
