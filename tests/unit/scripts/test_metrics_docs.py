"""Metrics keep to the conventions of Prometheus, and are all on their page."""

import metrics_docs
import pytest
from prometheus_client import Counter, Histogram

SEED_NAMES = {"conquiet_queue_messages_ack_total"}
"""Fixed by a specification: a participle would be ``acknowledged``."""
LABELS = {
    "table", "op_type", "status", "strategy", "stream", "group", "event", "outcome", "kind", "connection", "source",
    "target", "queue", "server",
}  # fmt: skip
UNITS = ("seconds", "size", "bytes")


def test_the_page_is_up_to_date() -> None:
    assert metrics_docs.PAGE.read_text(encoding="utf-8") == metrics_docs.page(), "run make api"


@pytest.mark.parametrize("metric", metrics_docs.metrics(), ids=metrics_docs.name_of)
def test_names_and_labels_follow_the_conventions(metric: object) -> None:
    name = metrics_docs.name_of(metric)

    assert name.startswith("conquiet_")
    assert name == name.lower()
    assert not any(word in name for word in ("millis", "_ms", "minutes", "count"))
    assert name.endswith("_total") == isinstance(metric, Counter)
    if isinstance(metric, Histogram):
        assert name.endswith(UNITS)
    assert set(metric._labelnames) <= LABELS  # type: ignore[attr-defined]
    assert not metric._documentation.endswith(".")  # type: ignore[attr-defined]
