import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from conquiet.core.lazy_exports import lazy_exports


@pytest.fixture
def package() -> Iterator[ModuleType]:
    module = ModuleType("a_lazy_package")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_a_name_is_imported_at_its_first_use_and_kept(package: ModuleType) -> None:
    get, _ = lazy_exports(package.__name__, {"collections": ("OrderedDict",)})

    assert "OrderedDict" not in vars(package)
    assert get("OrderedDict") is vars(package)["OrderedDict"]


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    get, _ = lazy_exports(package.__name__, {"collections": ("OrderedDict",)})

    with pytest.raises(AttributeError, match="module 'a_lazy_package' has no attribute 'missing'"):
        get("missing")


def test_every_exported_name_is_listed_before_it_is_imported(package: ModuleType) -> None:
    _, names = lazy_exports(package.__name__, {"collections": ("OrderedDict",), "json": ("loads",)})

    assert {"OrderedDict", "loads"} <= set(names())


def test_a_missing_extra_is_reported_before_anything_is_imported(package: ModuleType) -> None:
    def require() -> None:
        raise ImportError("install conquiet[redis]")

    get, _ = lazy_exports(package.__name__, {"collections": ("OrderedDict",)}, require=require)

    with pytest.raises(ImportError, match="conquiet\\[redis\\]"):
        get("OrderedDict")
