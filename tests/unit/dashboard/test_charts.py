from conquiet.dashboard.charts import latency, sparkline, throughput
from conquiet.management.history import Deploy, History, HistoryRange, Point, quantile


def history(*points: Point, deploys: tuple[Deploy, ...] = ()) -> History:
    return History(HistoryRange.HOUR, 60, points, deploys)


def test_a_sparkline_without_values_says_so() -> None:
    assert "nothing" in sparkline([], label="attempts")
    assert "nothing" in sparkline([0, 0], label="attempts")


def test_names_in_a_drawing_are_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    drawn = throughput(history(Point(0, ok=1), Point(60), deploys=(Deploy(evil, 30),))) + sparkline([1, 2], label=evil)

    assert "<script" not in drawn
    assert "&lt;script" in drawn


def test_a_deploy_within_the_time_is_marked() -> None:
    points = (Point(0, ok=5, failed=2), Point(60, ok=1))

    assert "v2" in throughput(history(*points, deploys=(Deploy("v2", 70),)))
    assert "v2" not in throughput(history(*points, deploys=(Deploy("v2", 700),)))


def test_latency_is_drawn_where_something_was_handled() -> None:
    busy = Point(60)
    busy.handling[3] = 10

    assert 'class="p50" d="M' in latency(history(Point(0), busy, Point(120)))
    assert 'class="p50" d=""' in latency(history(Point(0), Point(60)))


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = [0] * 15
    assert quantile(counts, 0.5) is None
    counts[0], counts[4] = 90, 10  # up to 5 ms, and 50 to 75 ms

    assert quantile(counts, 0.5) == 0.005 * 50 / 90
    found = quantile(counts, 0.95)
    assert found is not None
    assert 0.05 < found <= 0.075
