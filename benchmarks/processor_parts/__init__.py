"""The contenders of ``benchmarks/processor.py``, one process each."""
