"""Run code in a process that cannot import some modules, as if their distributions were not installed."""

import subprocess
import sys

_HIDE = (
    "import importlib.abc, sys\n"
    "class Hide(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {hidden!r}:\n"
    "            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
    "sys.meta_path.insert(0, Hide())\n"
)


def run_hiding(*modules: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` while these modules cannot be imported."""
    program = _HIDE.format(hidden=modules) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
