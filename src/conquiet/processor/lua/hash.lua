-- A whole hash, names and values in turn. KEYS: hash. A script only because a hash reads differently in the two
-- protocols and in three major releases of the client.
return redis.call('HGETALL', KEYS[1])
