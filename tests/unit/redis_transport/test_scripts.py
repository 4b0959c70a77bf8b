"""Scripts that make names of keys: each is sent with a key that never exists. See ``redis_transport.scripts``."""

import re
from pathlib import Path

import pytest

import conquiet
from conquiet.redis_transport.routing import slot_of
from conquiet.redis_transport.scripts import Script, load_script

SOURCES = Path(conquiet.__file__).parents[1]
SCRIPTS = [str(path.relative_to(SOURCES).with_suffix("")) for path in sorted(SOURCES.rglob("conquiet/*/lua/*.lua"))]
MAKES_A_NAME = re.compile(
    r"(?:call|try)\('\w+', (?:KEYS|ARGV)\[\d\] \.\.|= (?:KEYS|ARGV)\[\d\] \.\.|order \.\.|ARGV\[\d\] \.\. reply"
)
"""A name of a key that is put together of a part that the caller has given and another one."""


def loaded(path: str) -> Script:
    package, _, name = path.rpartition("/lua/")
    return load_script(package.replace("/", "."), name)


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_that_makes_names_of_keys_is_marked(path: str) -> None:
    script = loaded(path)

    assert script.makes_names == bool(MAKES_A_NAME.search(script.source))


@pytest.mark.parametrize("first", ["orders", "{orders}:order", "shop:{7}:orders"])
def test_the_key_that_never_exists_lies_in_the_slot_of_the_others(first: str) -> None:
    script = Script.from_source("one", "-- One.\n-- makes names of keys\nreturn 1\n")

    *given, absent = script.declared((first, "second"))

    assert given == [first, "second"]
    assert slot_of(absent) == slot_of(first)
    assert script.words((first,), ("a",))[2:] == [2, first, absent, "a"]


def test_other_scripts_are_sent_with_the_given_keys_only() -> None:
    script = Script.from_source("one", "-- It says: -- makes names of keys\nreturn 1\n")

    assert script.words(("orders",), ("a",)) == ["EVALSHA", script.sha, 1, "orders", "a"]
