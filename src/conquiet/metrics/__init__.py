"""Prometheus metrics: created in ``registry``, recorded by the packages."""
