"""The only way to Redis: connections, commands, replies, errors, scripts, topology.

    client              clone the caller's redis-py client: no retries, RESP2, our timeouts (with ``sentinel``)
    connection          synchronous: packed commands, raw replies, every failure a ``QueueError``
    async_connection    asyncio: packed commands, raw replies, on our own ``protocol``; for one reader
    scripts             Lua by digest on a cloned redis-py client, for many tasks or threads
    client_commands     plain commands on such a client, with the same ``limiter`` (with ``replica_wait``: WAIT)
    topology            which server holds a stream (with ``slot_table``)
    cluster_client      a Redis Cluster as if it were one server (with ``cluster_connection``, ``cluster_router``,
                        ``routing``): commands go to the node of their key and follow its slot
    commands, replies   to bytes and back (with ``ids``, ``hash_tags``); pure
    errors              redis-py's errors as ``QueueError`` with ``in_doubt`` (with ``connect_errors``)

It handles no message. Scripts and keys that several packages above share are also here: ``stream_scripts``,
``retention_scripts``, ``liveness``, ``worker_reports``.

Other packages do not import redis or hiredis; an import contract checks that. They call no command of a client either;
a unit test checks that.

See docs/decisions/0008 and 0015.
"""
