import pytest

from conquiet.core.extras import extra_for, require_extra
from conquiet.errors import MissingExtraError


def test_a_missing_extra_names_the_module_and_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match=r"needs no_such_module.*pip install 'conquiet\[redis\]'") as caught:
        require_extra("redis", "json", "no_such_module")

    assert caught.value.extra == "redis"
    assert isinstance(caught.value, ImportError)


def test_several_missing_modules_are_named_in_good_grammar() -> None:
    with pytest.raises(MissingExtraError, match="needs no_such and nor_this, which are not installed"):
        require_extra("redis", "no_such", "nor_this")


def test_a_failed_import_is_traced_to_its_extra() -> None:
    found = extra_for(ModuleNotFoundError("No module named 'pika.adapters'", name="pika.adapters"))

    assert found is not None
    assert found.extra == "rabbit"
    assert extra_for(ModuleNotFoundError("No module named 'shop'", name="shop")) is None
