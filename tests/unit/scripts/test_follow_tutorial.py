"""The script that follows the tutorial types the commands of the page.

Run it before a release: it installs packages.
"""

import follow_tutorial

OPEN = ("export CONQUIET_REDIS_URL=", "export CONQUIET_DB_URL=", "kill -9 ")
"""Commands with a last word that the reader chooses."""


def test_the_page_leaves_nothing_open_that_the_script_cannot_fill_in() -> None:
    assert [one for one in follow_tutorial.commands() if "…" in one and not one.startswith(OPEN)] == []


def test_the_page_goes_from_an_empty_folder_to_a_killed_worker() -> None:
    commands = follow_tutorial.commands()

    assert commands[0] == "python3 -m venv .venv"
    assert any(one.startswith("pip install 'conquiet[") for one in commands)
    assert [one for one in commands if one.startswith(follow_tutorial.ENDLESS)] == [
        "conquiet dev shop:app",
        "conquiet dashboard",
        "conquiet worker shop:app",
    ]
    assert any(one.startswith("kill -9") for one in commands)
    assert any("COUNT(DISTINCT order_id)" in one for one in commands)
