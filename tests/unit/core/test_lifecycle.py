import pytest

from conquiet.core.lifecycle import Lifecycle, Status
from conquiet.errors import LifecycleError


def test_a_life_goes_from_new_to_stopped() -> None:
    life = Lifecycle("engine")
    seen = [life.status]
    for step in (life.start, life.stop, life.finish):
        step()
        seen.append(life.status)

    assert seen == [Status.NEW, Status.RUNNING, Status.STOPPING, Status.STOPPED]


def test_a_life_happens_once() -> None:
    life = Lifecycle("engine")
    life.start()
    with pytest.raises(LifecycleError, match="engine cannot start: it is running"):
        life.start()
    life.finish()
    with pytest.raises(LifecycleError, match="it is stopped"):
        life.start()


def test_a_stop_before_the_start_means_it_never_starts() -> None:
    life = Lifecycle("engine")
    life.stop()

    assert life.is_stopping
    with pytest.raises(LifecycleError):
        life.start()


def test_stopping_twice_changes_nothing() -> None:
    life = Lifecycle("engine")
    life.start()
    life.stop()
    seen = [life.status]
    life.finish()
    life.stop()
    seen.append(life.status)

    assert seen == [Status.STOPPING, Status.STOPPED]
