"""The plan of a cluster counts with its busiest master."""

import plan_cluster
import pytest
from plan_cluster import Load


def a_load(**changes: float) -> Load:
    usual = {"rate": 100_000, "hosts": 10, "server_us": 20.0, "entry_bytes": 500, "backlog_s": 60.0, "full": 0.7}
    return Load(**{**usual, "read": 4, **changes})  # type: ignore[arg-type]


def test_one_master_has_everything() -> None:
    assert plan_cluster.busiest_share(16, 1) == 1.0


def test_partitions_do_not_fall_evenly_on_masters() -> None:
    shares = [plan_cluster.busiest_share(16, masters) for masters in (3, 16)]

    assert shares[0] >= 6 / 16  # 16 partitions cannot be less than 6 on the busiest of three
    assert shares[1] > 1 / 16


@pytest.mark.parametrize("partitions", [64, 256, 1024])
def test_the_busiest_master_is_not_full(partitions: int) -> None:
    load = a_load()

    masters = plan_cluster.masters_needed(load, partitions)

    assert masters is not None
    assert load.rate * load.server_us / 1e6 * plan_cluster.busiest_share(partitions, masters) <= load.full


def test_one_partition_alone_can_be_too_much() -> None:
    assert plan_cluster.masters_needed(a_load(rate=1_000_000), 16) is None
