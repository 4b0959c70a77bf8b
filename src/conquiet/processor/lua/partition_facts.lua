-- Sizes of a partition. KEYS: stream, delayed, dead. Answers {entries, delayed messages, dead letters}.
return {redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]), redis.call('XLEN', KEYS[3])}
