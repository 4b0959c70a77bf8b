"""Each extra alone brings what its packages import, and nothing that no package uses."""

import hashlib
import urllib.error
import urllib.request
from importlib.metadata import distribution
from pathlib import Path

import check_extras
import local_index
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


def test_every_package_is_promised_by_an_extra() -> None:
    folder = check_extras.ROOT / "src" / "conquiet"
    packages = {path.parent.relative_to(folder.parent).as_posix() for path in folder.glob("*/__init__.py")}
    promised = {"/".join(name.split(".")[:2]) for names in check_extras.PROMISES.values() for name in names}

    assert packages - promised == set()


def test_a_local_index_names_each_file_with_its_digest(tmp_path: Path) -> None:
    wheel = tmp_path / "Some_Thing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"content")
    (tmp_path / "other-2.0.tar.gz").write_bytes(b"")

    with local_index.serve(tmp_path) as url:
        with urllib.request.urlopen(f"{url}some-thing/") as answer:
            page = answer.read().decode()
        with urllib.request.urlopen(f"{url.removesuffix('simple/')}files/{wheel.name}") as answer:
            found = answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{url}missing/")
        caught.value.close()

    assert f"{wheel.name}#sha256={hashlib.sha256(b'content').hexdigest()}" in page
    assert "other" not in page
    assert found == b"content"
    assert local_index.project_of("other-2.0.tar.gz") == "other"
