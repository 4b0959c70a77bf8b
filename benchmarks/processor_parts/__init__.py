"""What ``benchmarks/processor.py`` lets run against each other, one process each."""
