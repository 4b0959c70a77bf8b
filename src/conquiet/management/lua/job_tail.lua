-- A page of a list, counted from its end. KEYS: list; ARGV: how many to leave out at the end, how many. Answers {member, …}.
return redis.call('LRANGE', KEYS[1], -ARGV[1] - ARGV[2], -ARGV[1] - 1)
