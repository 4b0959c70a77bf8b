"""Code that all packages share: validation, backoff, lifecycle, worker pool, JSON codec. No I/O, no client library."""
