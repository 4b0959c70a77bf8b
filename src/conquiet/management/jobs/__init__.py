"""Operate on the jobs of a processor's stream: list, show, cancel, run now, reschedule, edit and retry, reset.

    models      JobPhase, JobFilter, JobReport, JobList, JobHistory (pure)
    decoding    decodes stored messages into reports (pure)
    reader      reads pages of one phase
    search      finds one job by its id
    history     combines everything that is known of one job (pure)
    control     changes one job
    bulk        changes all jobs that match a filter
    reset       deletes the jobs of a stream

``JobAdmin`` in ``admin`` combines them for one stream and all its partitions. Everything is asynchronous and bounded: a
page reads at most ``SCAN_LIMIT`` messages and returns a cursor for the next page.
"""
