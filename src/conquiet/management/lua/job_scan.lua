-- A part of a sorted set. KEYS: sorted set; ARGV: cursor, about how many. Answers {next cursor, {member, score, …}}.
return redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
