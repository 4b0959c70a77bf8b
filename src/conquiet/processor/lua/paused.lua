-- What is paused. KEYS: paused. Answers names and since when, in turn. A script only because a hash reads
-- differently in the two protocols and in three major releases of the client.
return redis.call('HGETALL', KEYS[1])
