-- Delete dead letters. KEYS: dead; ARGV: ids. Answers how many were there.
return redis.call('XDEL', KEYS[1], unpack(ARGV))
