-- Who lives: a sorted set of nodes by the moment, on this server's clock, at which their word ends.
--
-- KEYS[1] the set; ARGV[1] the node, ARGV[2] how many milliseconds its word is good for.
-- Returns the time (seconds, microseconds) and all nodes whose word is good.
local key = KEYS[1]
local told = redis.call('TIME')
-- Microseconds are rounded up: nobody's word ends too early.
local now = tonumber(told[1]) * 1000 + math.ceil(tonumber(told[2]) / 1000)
local ends = now + tonumber(ARGV[2])
redis.call('ZADD', key, string.format('%.0f', ends), ARGV[1])
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('(%.0f', now - 1))
local last = redis.call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
redis.call('PEXPIREAT', key, string.format('%.0f', tonumber(last[2]) + 1000))
for _, node in ipairs(redis.call('ZRANGE', key, '0', '-1')) do
  told[#told + 1] = node
end
return told
