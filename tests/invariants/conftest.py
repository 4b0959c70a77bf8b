"""Invariants start hundreds of short-lived processes and kill most of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.invariants.histories import ROOT, History

collect_ignore = (
    []
    if os.environ.get("CONQUIET_TORTURE") == "1"
    # Only by ``make torture``: three brokers take a minute to start, and network namespaces need root.
    else [
        "test_a_promoted_mariadb_loses_nothing.py",
        "test_a_rabbitmq_cluster_loses_nothing.py",
        "test_fail_overs_lose_nothing.py",
        "test_hosts_apart_lose_nothing.py",
    ]
)


@pytest.fixture(autouse=True, scope="module")  # as wide as the widest fixture that starts one
def path_of_the_workers() -> Iterator[None]:
    """Workers import tests.invariants.recorder."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture
def new_history(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., History]:
    """Make the history of a storm: ``new_history(storm, Row(…), seed=…, promise=…)``."""

    def make(storm: str, row: Any, **options: Any) -> History:
        test = str(Path(request.node.nodeid.split("::")[0]).name) + "::" + request.node.nodeid.split("::", 1)[1]
        folder = tmp_path / f"history-{len(list(tmp_path.glob('history-*')))}"
        return History(storm=storm, row=row, folder=folder, test=test.split("@")[0], **options)

    return make
