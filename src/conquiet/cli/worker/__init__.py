"""``conquiet worker``: runs the workers of a module in supervised processes.

command         the options
supervisor      starts, restarts and ends the processes; imports no code of the user
restarts        decides when to restart and when to give up (pure)
child           one process: imports the workers and runs them
targets         loads the workers that ``module:object`` names
heartbeat_file  what each process reports about itself
endpoints       liveness, readiness and metrics over HTTP
notify          messages to systemd
reload          detects changed source files
reachability    distinguishes an unreachable server from other failures
logs            log lines with their extra fields

How readiness is reported: docs/decisions/0029.
"""
