-- Return the entries of a stream and their state, as of one moment. KEYS: state, entries. Returns {entries, state}, as
-- names and values. A script and not a transaction: in a Redis Cluster a script can follow a slot that moves.
return {redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[1])}
