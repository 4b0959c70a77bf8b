"""Stage the sources of the documentation site: docs/, the documents of the repository, and the files they link to.

    python scripts/build_docs.py --into FOLDER

Documents in ``docs/`` link to files outside of it (README, examples, SQL files). On the site each of these is a page:
a Markdown file as it is, any other file as one block of code. Links are rewritten to the pages.
"""

import argparse
import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPOSITORY_PAGES = {
    f"{name}.md": f"{name.lower()}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}
"""Documents at the top of the repository, and their page."""

LANGUAGES = {".py": "python", ".sql": "sql", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".sh": "bash"}

_CODE = re.compile(r"(```.*?```|~~~.*?~~~)", re.DOTALL)
_LINK = re.compile(r"(\]\(|(?:src|href|srcset)=\")([^)\s\"]+)([)\"])")
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|#", re.IGNORECASE)


class Stage:
    """Writes pages below one folder.

    Args:
        folder: Emptied first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: list[tuple[Path, PurePosixPath]] = []
        self._seen: dict[Path, PurePosixPath] = {}

    def run(self) -> int:
        """Write all pages and return how many there are."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in sorted(DOCS.rglob("*")):
            if path.is_file():
                self._page_of(path)
        for name in REPOSITORY_PAGES:
            self._page_of(ROOT / name)
        for origin, page in self._queue:  # grows while it is read
            self._write(origin, page)
        return len(self._queue)

    def _page_of(self, path: Path) -> PurePosixPath:
        """Return the page of a file and make sure that it is written."""
        page = self._seen.get(path)
        if page is None:
            page = self._seen[path] = _place(path)
            self._queue.append((path, page))
        return page

    def _write(self, origin: Path, page: PurePosixPath) -> None:
        target = self._folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.suffix == ".md":
            target.write_text(self._rewritten(origin, page), encoding="utf-8")
        elif page.suffix == ".md":
            language = LANGUAGES.get(origin.suffix, "text")
            text = origin.read_text(encoding="utf-8").rstrip()
            target.write_text(f"# {origin.relative_to(ROOT)}\n\n````{language}\n{text}\n````\n", encoding="utf-8")
        else:
            shutil.copyfile(origin, target)

    def _rewritten(self, origin: Path, page: PurePosixPath) -> str:
        parts = _CODE.split(origin.read_text(encoding="utf-8"))
        # Every second part is a block of code, which has no links.
        parts[::2] = [_LINK.sub(lambda match: self._link(match, origin, page), part) for part in parts[::2]]
        return "".join(parts)

    def _link(self, match: re.Match[str], origin: Path, page: PurePosixPath) -> str:
        before, target, after = match.groups()
        path, hash_mark, anchor = target.partition("#")
        if _ABSOLUTE.match(target):
            return match[0]
        linked = (origin.parent / path).resolve()
        if linked.is_dir():
            linked /= "README.md"
        if not linked.is_file():
            return match[0]  # the build reports it
        relative = os.path.relpath(self._page_of(linked), page.parent)
        return f"{before}{relative}{hash_mark}{anchor}{after}"


def _place(path: Path) -> PurePosixPath:
    """Return the place of a repository file on the site."""
    if path.is_relative_to(DOCS):
        return PurePosixPath(path.relative_to(DOCS).as_posix())
    name = path.relative_to(ROOT).as_posix()
    if name in REPOSITORY_PAGES:
        return PurePosixPath(REPOSITORY_PAGES[name])
    return PurePosixPath("files") / (name if path.suffix == ".md" else f"{name}.md")


def main() -> None:
    """Stage the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True)
    Stage(parser.parse_args().into).run()


if __name__ == "__main__":
    main()
