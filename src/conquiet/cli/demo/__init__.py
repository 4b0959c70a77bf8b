"""``conquiet demo``: the main job, visibly, with one worker killed half-way.

plan      the orders and what must come out of them (pure)
stage     the servers, the tables and the folder, all of them gone afterwards
worker    one worker process: process it, commit it, then acknowledge it
board     what the workers say about themselves, in a file that survives them
crew      starting, killing and ending worker processes
conductor the course of events
ledger    the sum at the end (pure)
view      the same story on a terminal and in a plain log
"""
