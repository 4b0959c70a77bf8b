"""The page of conformance, without a run of the tests that it names."""

import tomllib

import conformance


def test_the_page_names_the_tests_that_are_marked_today() -> None:
    """A renamed test is found here, and not at the end of a run of all tests."""
    rules = conformance.read_rules(conformance.DOCS / "spec-rules.tsv")
    packages = tomllib.loads((conformance.DOCS / "conformance.toml").read_text(encoding="utf-8"))["packages"]
    page = conformance.render(rules, conformance.marked_tests(), conformance.required_rules(packages, rules))

    written = (conformance.DOCS / "conformance.md").read_text(encoding="utf-8")
    assert written.splitlines() == page.splitlines(), "run: python scripts/conformance.py --markers"


def test_a_rule_without_a_marker_is_shown_as_open() -> None:
    rule = conformance.Rule("QC-001.1", "000", "one")

    assert "| QC-001.1 | one | queue | open |" in conformance.render([rule], {}, {"QC-001.1": "queue"})
