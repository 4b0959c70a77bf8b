"""What every package shares: validation, backoff, lifecycle, worker pool, JSON codec. No I/O, no client library.

See docs/decisions/0027.
"""
