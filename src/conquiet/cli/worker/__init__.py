"""``conquiet worker``: runs what a module holds, in supervised processes.

command      the words
supervisor   starts, restarts and ends the processes; knows nothing of the user's code
restarts     when to start again and when to give up (pure)
child        one process: imports the object and runs it
targets      from ``module:object`` to what can be run
runnables    one face for consumers, processors, schedulers, relays
pulse        what each process says about itself, in a file that survives it
endpoints    liveness, readiness and metrics over HTTP
notify       a word to systemd
reload       restart when a file changes
"""
