"""The contenders of ``benchmarks/exactly_once.py``."""
