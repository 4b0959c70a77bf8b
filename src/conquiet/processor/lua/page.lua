-- A page of a stream, oldest first. KEYS: stream; ARGV: from this id on, how many. Answers {{id, {field, value, …}}, …}.
return redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
