"""Each extra alone brings what its packages import, and nothing that no package uses."""

from importlib.metadata import distribution

import check_extras
import pytest


def test_every_extra_of_the_project_has_a_promise() -> None:
    extras = distribution("conquiet").metadata.get_all("Provides-Extra") or []
    provided = {check_extras.normal(one) for one in extras}

    assert provided == {check_extras.normal(one) for one in check_extras.PROMISES if one}


@pytest.mark.parametrize("extra", check_extras.PROMISES)
def test_the_promised_packages_import_with_one_extra(extra: str) -> None:
    assert check_extras.import_with_extra(extra) == ""


@pytest.mark.parametrize("extra", check_extras.PROMISES)
def test_no_requirement_of_an_extra_is_needless(extra: str) -> None:
    assert check_extras.needless(extra) == []
