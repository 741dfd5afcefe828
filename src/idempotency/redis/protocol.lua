-- One operation on one record; the same as protocol.rs, which says why. A test holds the two equal.
--
-- KEYS[1]: the record. ARGV: the time in ms, or '' for the server's; the operation; then
--   begin:     owner, fingerprint, effect, tool, lease, retention, '1' to start at once
--   start:     owner, fence, lease
--   heartbeat: owner, fence, lease, note ('' for none)
--   complete:  owner, fence, ok, codec, result
--   fail:      owner, fence, 'no_effect' or 'unknown'
--   resolve:   fence ('' for any), 'not_done', or 'done', ok, codec, result
-- Returns the answer's name and what belongs to it.

local key, operation = KEYS[1], ARGV[2]
-- A record that only a decision may end has a TTL all the same, ten years: no key is ever without.
local NEVER = 315360000000

local now
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
else
  now = tonumber(ARGV[1])
end

local names = {'state', 'owner', 'fence', 'fingerprint', 'effect', 'attempts', 'lease_until', 'retention', 'created',
  'updated', 'started', 'expires'}
local values = redis.call('HMGET', key, unpack(names))
local record
if values[1] then
  record = {}
  for index, name in ipairs(names) do record[name] = values[index] end
  for _, name in ipairs({'fence', 'attempts', 'lease_until', 'retention', 'created', 'updated'}) do
    record[name] = tonumber(record[name])
  end
  now = math.max(now, record.updated)
  -- '' stands for never.
  if record.expires ~= '' and tonumber(record.expires) <= now then
    redis.call('DEL', key)
    record = nil
  end
end

-- '%.0f' because Lua writes large numbers as 1.7e+12.
local function whole(number) return string.format('%.0f', number) end

-- Writes what changed, and when Redis may forget it.
local function put(changes, expires)
  local flat = {'updated', whole(now), 'expires', expires and whole(expires) or ''}
  for name, value in pairs(changes) do
    flat[#flat + 1] = name
    flat[#flat + 1] = type(value) == 'number' and whole(value) or value
  end
  redis.call('HSET', key, unpack(flat))
  redis.call('PEXPIRE', key, whole(math.max(expires and expires - now or NEVER, 1)))
end

local function may_repeat(effect) return effect ~= 'at_most_once' end

-- When a record that is being worked on may be forgotten; nil is never.
local function expiry(state, effect, lease_until, retention)
  if state == 'started' and not may_repeat(effect) then return nil end
  return lease_until + retention
end

local function renew(changes, state, lease)
  changes.lease_until = now + lease
  put(changes, expiry(state, record.effect, changes.lease_until, record.retention))
end

local function doubt()
  put({state = 'in_doubt', lease_until = now}, nil)
end

local function finish(ok, codec, result)
  put({state = 'done', ok = ok, codec = codec, result = result, lease_until = now}, now + record.retention)
end

local function acquire()
  local lease, retention = tonumber(ARGV[7]), tonumber(ARGV[8])
  local state = ARGV[9] == '1' and 'started' or 'claimed'
  local changes = {
    state = state, owner = ARGV[3], fingerprint = ARGV[4], effect = ARGV[5], tool = ARGV[6],
    retention = retention, lease_until = now + lease, note = '',
    fence = (record and record.fence or 0) + 1,
    attempts = (record and record.attempts or 0) + 1,
    created = record and record.created or now,
    started = state == 'started' and now or '',
  }
  put(changes, expiry(state, ARGV[5], changes.lease_until, retention))
  return {'acquired', whole(changes.fence), whole(changes.attempts)}
end

if operation == 'begin' then
  if not record then return acquire() end
  if record.fingerprint ~= ARGV[4] then return {'mismatch'} end
  local function in_doubt()
    return {'in_doubt', whole(record.fence), record.started ~= '' and record.started or whole(record.created)}
  end
  if record.state == 'done' then
    local outcome = redis.call('HMGET', key, 'ok', 'codec', 'result')
    return {'replay', outcome[1], outcome[2], outcome[3]}
  end
  if record.state == 'in_doubt' then return in_doubt() end
  if record.owner == ARGV[3] then return {'acquired', whole(record.fence), whole(record.attempts)} end
  if now < record.lease_until then return {'in_progress', whole(record.lease_until - now)} end
  if record.state == 'started' and not (may_repeat(record.effect) and may_repeat(ARGV[5])) then
    doubt()
    return in_doubt()
  end
  return acquire()
end

if operation == 'resolve' then
  local orphaned = record and (record.state == 'in_doubt'
    or (record.state ~= 'done' and record.lease_until <= now))
  if not orphaned or (ARGV[3] ~= '' and tonumber(ARGV[3]) ~= record.fence) then return {'stale'} end
  if ARGV[4] == 'done' then finish(ARGV[5], ARGV[6], ARGV[7]) else redis.call('DEL', key) end
  return {'held'}
end

if operation == 'fail' and ARGV[5] == 'no_effect' and not record then return {'held'} end
if not record or record.owner ~= ARGV[3] or record.fence ~= tonumber(ARGV[4]) then return {'stale'} end
if operation == 'complete' and record.state == 'done' then return {'held'} end
if record.state ~= 'claimed' and record.state ~= 'started' then return {'stale'} end

if operation == 'start' then
  local changes = {state = 'started'}
  if record.state == 'claimed' then changes.started = now end
  renew(changes, 'started', tonumber(ARGV[5]))
elseif operation == 'heartbeat' then
  local changes = {}
  if ARGV[6] ~= '' then changes.note = ARGV[6] end
  renew(changes, record.state, tonumber(ARGV[5]))
elseif operation == 'complete' then
  finish(ARGV[5], ARGV[6], ARGV[7])
elseif operation == 'fail' then
  if ARGV[5] == 'no_effect' or record.state == 'claimed' then
    redis.call('DEL', key)
  elseif may_repeat(record.effect) then
    renew({}, record.state, 0)
  else
    doubt()
  end
end
return {'held'}
