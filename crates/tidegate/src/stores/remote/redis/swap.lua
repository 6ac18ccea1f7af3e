-- Many independent requests in one call: each compares the versions of its names with those that
-- were seen, and writes all of them or none.
--
-- KEYS     the names of all requests, one after another
-- ARGV[1]  'k': every request has one name and writes over its value, which is as long as the one
--          before and keeps its time. Per request: the version that was seen, the new value.
--          'p': plain. As 'k', and per request the milliseconds of its value ('' keeps).
--          'g': general. Per request the number of its names, and per name: the version that was
--          seen, the new value ('' removes), its milliseconds ('' keeps, '-' only compares), and
--          '1' if whoever watches the name is told.
--          With a 't' behind it the server's time is told.
--
-- A value begins with its version: eight bytes. Returns 0, or the time (seconds, microseconds; both
-- empty if nobody asked) and, for each request that was stale, its number and what its names have.
-- Arguments stay strings: Redis spends more on a number than on the whole comparison. Most of its
-- time goes into what Lua must make and throw away, so a look brings back nothing but the version,
-- which is there already, and a value is written in place: SET would answer with a table.
local call, look, keys, argv = redis.call, redis.pcall, KEYS, ARGV
local head = argv[1]
local told
if head == 'kt' or head == 'pt' or head == 'gt' then
  told = call('TIME')
end

if head ~= 'g' and head ~= 'gt' then
  local keeps = head == 'k' or head == 'kt'
  local at, step = 2, keeps and 2 or 3
  for number = 1, #keys do
    local key = keys[number]
    if look('GETRANGE', key, '0', '7') == argv[at] then
      if keeps or argv[at + 2] == '' then
        call('SETRANGE', key, '0', argv[at + 1])
      else
        call('PSETEX', key, argv[at + 2], argv[at + 1])
      end
    else
      told = told or {'', ''}
      told[#told + 1] = number
      told[#told + 1] = look('GET', key)
    end
    at = at + step
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
        call('SETRANGE', key, '0', value)
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
