"""Detect changed source files, for development. Compares modification times; no library, no event API."""

import os
from pathlib import Path

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceWatch:
    """Remembers the modification times of the Python files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._scan()

    def changed(self) -> str | None:
        """Return the name of a file that is new, gone or changed since the last call, or None."""
        before, self._seen = self._seen, self._scan()
        for path in sorted(before.keys() | self._seen.keys()):
            if before.get(path) != self._seen.get(path):
                return path
        return None

    def _scan(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for folder, folders, files in os.walk(self._root):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".")
                and name not in _SKIPPED
                and not (Path(folder) / name / "pyvenv.cfg").exists()
            ]
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder) / name
                    try:
                        found[str(path.relative_to(self._root))] = path.stat().st_mtime
                    except OSError:  # deleted since it was listed
                        continue
        return found
