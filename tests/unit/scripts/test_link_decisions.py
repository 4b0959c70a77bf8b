import ast

import link_decisions

UNLINKED_LIMIT = 0
"""Modules without a reference. ``python scripts/link_decisions.py --write`` adds them; then this is zero."""


def test_explained_modules_refer_to_their_decision() -> None:
    found = link_decisions.missing()

    assert len(found) <= UNLINKED_LIMIT, {path.name: numbers for path, numbers in found.items()}


def test_a_list_of_explained_modules_may_span_lines() -> None:
    assert ("0051", "conquiet.transactional.targets") in set(link_decisions.explained())


def test_a_reference_becomes_the_last_paragraph_of_the_docstring() -> None:
    for text in ('"""One line."""\n\nimport os\n', '"""One line.\n\nMore.\n"""\n\nimport os\n'):
        changed = link_decisions.with_reference(text, ["0001", "0002"])

        assert (ast.get_docstring(ast.parse(changed)) or "").endswith("\n\nSee docs/decisions/0001 and 0002.")
        assert changed.endswith('\n"""\n\nimport os\n')
