-- Many independent requests in one call: each compares the versions of its names with those that
-- were seen, and writes all of them or none.
--
-- KEYS     the names of all requests, one after another
-- ARGV[1]  '' or 't': every request has one name, of its own, and writes a short value. Per request:
--          the version that was seen, the new value, its milliseconds ('' keeps what it has).
--          'g' or 'gt': general. Per request the number of its names, and per name:
--          the version that was seen, the new value ('' removes), its milliseconds ('-' only
--          compares), and '1' if whoever watches the name is told.
--          With 't' the server's time is told.
--
-- A value begins with its version: eight bytes. Returns 0, or the time (seconds, microseconds; both
-- empty if nobody asked) and, for each request that was stale, its number and what its names have.
-- Arguments stay strings: Redis spends more on a number than on the whole comparison.
local call, look, sub, keys, argv = redis.call, redis.pcall, string.sub, KEYS, ARGV
local head = argv[1]
local told
if head == 't' or head == 'gt' then
  told = call('TIME')
end

if head == '' or head == 't' then
  -- A call of a command costs more than what it does: all are looked at with one.
  local found, at = call('MGET', unpack(keys)), 2
  for number = 1, #keys do
    local key, seen, lives = keys[number], argv[at], argv[at + 2]
    local value, same = found[number], true
    if seen == '' then
      -- What is no string looks as if it were not there, and must not be written over.
      same = not value and call('SET', key, argv[at + 1], 'PX', lives, 'NX')
    elseif not value or sub(value, 1, 8) ~= seen then
      same = false
    elseif lives == '' then
      call('SET', key, argv[at + 1], 'KEEPTTL')
    else
      call('PSETEX', key, lives, argv[at + 1])
    end
    if not same then
      told = told or {'', ''}
      told[#told + 1] = number
      told[#told + 1] = look('GET', key)
    end
    at = at + 3
  end
  return told or 0
end

local at, first, number = 2, 1, 1
while first <= #keys do
  local last = first + tonumber(argv[at]) - 1
  at = at + 1
  local same = true
  for name = first, last do
    if look('GETRANGE', keys[name], '0', '7') ~= argv[at + 4 * (name - first)] then
      same = false
    end
  end
  if not same then
    told = told or {'', ''}
    told[#told + 1] = number
  end
  for name = first, last do
    local key, lives = keys[name], argv[at + 2]
    if not same then
      told[#told + 1] = look('GET', key)
    elseif lives ~= '-' then
      local value = argv[at + 1]
      if value == '' then
        call('DEL', key)
      elseif lives == '' then
        call('SET', key, value, 'KEEPTTL')
      else
        call('PSETEX', key, lives, value)
      end
      -- Somebody without the permission to publish still may write.
      if argv[at + 3] == '1' then
        look('PUBLISH', key, '')
      end
    end
    at = at + 4
  end
  first, number = last + 1, number + 1
end
return told or 0
