-- Length of a stream. KEYS: stream.
return redis.call('XLEN', KEYS[1])
