import time

import pytest

from conquiet.errors import MissingExtraError
from conquiet.kernel.clock import SYSTEM_CLOCK, Clock
from conquiet.kernel.extras import extra_for, require_extra


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SYSTEM_CLOCK

    assert abs(clock.time() - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()


def test_a_missing_extra_names_the_module_and_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match=r"needs no_such_module.*pip install 'conquiet\[redis\]'") as caught:
        require_extra("redis", "json", "no_such_module")

    assert caught.value.extra == "redis"
    assert isinstance(caught.value, ImportError)


def test_several_missing_modules_are_named_in_good_grammar() -> None:
    with pytest.raises(MissingExtraError, match="needs no_such and nor_this, which are not installed"):
        require_extra("redis", "no_such", "nor_this")


def test_a_failed_import_tells_the_extra_that_brings_the_module() -> None:
    found = extra_for(ModuleNotFoundError("No module named 'pika.adapters'", name="pika.adapters"))

    assert found is not None
    assert found.extra == "rabbit"
    assert extra_for(ModuleNotFoundError("No module named 'shop'", name="shop")) is None
