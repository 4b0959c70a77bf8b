-- A page of a sorted set by score. KEYS: sorted set; ARGV: least score, how many to skip there, how many.
-- Answers {member, score, …}.
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
