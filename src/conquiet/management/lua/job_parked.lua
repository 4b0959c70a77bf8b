-- A page of a list. KEYS: list; ARGV: from which place, how many. Answers {member, …}.
return redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
