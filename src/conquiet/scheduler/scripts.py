"""The steps of the scheduler that have to be one step on the server. See ``processor.scripts`` for how they run."""

import hashlib
from functools import cache
from importlib import resources

from conquiet.processor.scripts import Script


@cache
def script(name: str) -> Script:
    """Return the script of that name, read once per process."""
    source = resources.files("conquiet.scheduler").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    # Redis names scripts by SHA-1; nothing is protected by it.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
