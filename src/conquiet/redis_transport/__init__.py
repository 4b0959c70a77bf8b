"""The only way to Redis: connections, commands, replies, errors, scripts, topology. Knows no queue.

    client              clone the caller's redis-py client: no retries, RESP2, our timeouts (with ``sentinel``)
    connection          synchronous: packed commands, raw replies, every failure a ``QueueError``
    async_connection    asyncio: packed commands, raw replies, on a ``protocol`` of our own; for one reader
    scripts             Lua by digest on a cloned redis-py client, for many tasks or threads at once
    topology, cluster   which server holds a stream (with ``slot_table``)
    cluster_client      a Redis Cluster as if it were one server (with ``sync_cluster_client``, ``cluster_connection``,
                        ``routing``): commands go to the node of their key and follow its slot
    commands, replies   to bytes and back (with ``ids``, ``hash_tags``); pure
    errors              redis-py's errors as ``QueueError`` with ``in_doubt`` (with ``connect_errors``)

Other packages do not import redis or hiredis; an import contract checks that.

See docs/decisions/0008 and 0055.
"""
