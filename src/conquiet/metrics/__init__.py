"""Prometheus metrics: created in ``registry``, observed by the rooms."""
