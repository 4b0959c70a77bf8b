import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import conquiet.core
from conquiet.core.lazy_exports import lazy_exports, stub_exports

ROOT = Path(conquiet.core.__file__).parents[2]
STUBS = sorted((ROOT / "conquiet").rglob("__init__.pyi"))


@pytest.fixture
def package() -> Iterator[ModuleType]:
    module = ModuleType("a_lazy_package")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_a_name_is_imported_at_its_first_use_and_kept(package: ModuleType) -> None:
    get, _ = lazy_exports(package.__name__, {"OrderedDict": "collections"})

    assert "OrderedDict" not in vars(package)
    assert get("OrderedDict") is vars(package)["OrderedDict"]


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    get, _ = lazy_exports(package.__name__, {"OrderedDict": "collections"})

    with pytest.raises(AttributeError, match="module 'a_lazy_package' has no attribute 'missing'"):
        get("missing")


def test_every_exported_name_is_listed_before_it_is_imported(package: ModuleType) -> None:
    _, names = lazy_exports(package.__name__, {"OrderedDict": "collections", "loads": "json"})

    assert {"OrderedDict", "loads"} <= set(names())


def test_a_missing_extra_is_reported_before_anything_is_imported(package: ModuleType) -> None:
    def require() -> None:
        raise ImportError("install conquiet[redis]")

    get, _ = lazy_exports(package.__name__, {"OrderedDict": "collections"}, require=require)

    with pytest.raises(ImportError, match="conquiet\\[redis\\]"):
        get("OrderedDict")


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_a_package_exports_exactly_the_imports_of_its_stub(stub: Path) -> None:
    """A line of another form would be seen by type checkers, and missing when the program runs."""
    package = ".".join(stub.relative_to(ROOT).parent.parts)
    lines = ast.parse(stub.read_text(encoding="utf-8")).body
    imported = {alias.asname: line.module for line in lines if isinstance(line, ast.ImportFrom) for alias in line.names}

    assert stub_exports(package) == imported
    assert set(importlib.import_module(package).__all__) == set(imported)
    assert len(lines) == len(imported) > 0
