-- The entries of a stream and their state, as of one moment. KEYS: state, entries. Answers {entries, state}, names and
-- values in turn. A script and not a transaction: in a Redis Cluster a script can follow a slot that moves.
return {redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[1])}
