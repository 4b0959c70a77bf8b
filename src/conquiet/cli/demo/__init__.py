"""``conquiet demo``: 10,000 orders through Redis into a database, with one worker killed half-way.

It is part of the wheel, because the command must work without a clone of the repository.

plan             the orders and the balances that must result (pure)
environment      the servers, the tables and the folder, all removed afterwards
worker           one worker process: process it, commit it, then acknowledge it
shared_state     counters of the workers, in a file that survives them
workers          starts, kills and ends the worker processes
fault_injection  kills workers and the private Redis
orchestrator     runs the demo
store            the tables
summary          the result (pure)
view             the output, on a terminal and as a plain log
"""
