-- A page of entries of a stream, oldest first. KEYS: stream; ARGV: from, to, how many. Answers {{id, {field, value, …}}, …}.
return redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
