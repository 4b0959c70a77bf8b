"""Jobs of a processor's stream, for operators: list, show, cancel, run now, reschedule, edit and retry, reset.

    models      JobPhase, JobFilter, JobReport, JobPage, JobStory: what is asked and answered (pure)
    decoding    stored messages into reports (pure)
    reader      pages of one phase
    search      where one job is

``JobAdmin`` in ``admin`` puts them together, ``PartitionedJobs`` in ``partitioned`` does so for the partitions of a
stream. Everything is asynchronous and bounded: each step reads at most ``SCAN_LIMIT`` messages, and a page says where
the next one begins.
"""
