-- The oldest and the newest entries of a stream. KEYS: stream; ARGV: how many of each.
return {
  redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1]),
  redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])
}
