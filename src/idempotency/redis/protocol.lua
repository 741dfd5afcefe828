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
--
-- The server runs nothing else meanwhile: hence few calls, and no tables.

local call, key, operation = redis.call, KEYS[1], ARGV[2]
-- A record that only a decision may end has a TTL all the same, ten years: no key is ever without.
local NEVER = 315360000000

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local state, owner, fence, fingerprint, effect, attempts, lease_until, retention, created, updated, started, expires =
  unpack(call('HMGET', key, 'state', 'owner', 'fence', 'fingerprint', 'effect', 'attempts', 'lease_until',
    'retention', 'created', 'updated', 'started', 'expires'))
if state then
  fence, lease_until, retention = tonumber(fence), tonumber(lease_until), tonumber(retention)
  now = math.max(now, tonumber(updated))
  -- '' stands for never.
  if expires ~= '' and tonumber(expires) <= now then
    call('DEL', key)
    state = nil
  end
end

-- Writes what changed, and when Redis may forget it; nil is never.
local function put(forget, ...)
  call('HSET', key, 'updated', now, 'expires', forget or '', ...)
  call('PEXPIRE', key, math.max(forget and forget - now or NEVER, 1))
end

local function may_repeat(kind) return kind ~= 'at_most_once' end

-- When a record that is being worked on may be forgotten.
local function expiry(as, kind, leased, kept)
  if as == 'started' and not may_repeat(kind) then return nil end
  return leased + kept
end

local function acquire()
  local as, leased, kept = ARGV[9] == '1' and 'started' or 'claimed', now + ARGV[7], tonumber(ARGV[8])
  local next_fence, next_attempt, since = 1, 1, now
  if state then next_fence, next_attempt, since = fence + 1, attempts + 1, created end
  put(expiry(as, ARGV[5], leased, kept), 'state', as, 'owner', ARGV[3], 'fingerprint', ARGV[4], 'effect', ARGV[5],
    'tool', ARGV[6], 'retention', kept, 'lease_until', leased, 'note', '', 'fence', next_fence,
    'attempts', next_attempt, 'created', since, 'started', as == 'started' and now or '')
  return {'acquired', next_fence, next_attempt}
end

local function doubt() put(nil, 'state', 'in_doubt', 'lease_until', now) end

local function in_doubt() return {'in_doubt', fence, tonumber(started ~= '' and started or created)} end

if operation == 'begin' then
  if not state then return acquire() end
  if fingerprint ~= ARGV[4] then return {'mismatch'} end
  if state == 'done' then
    local outcome = call('HMGET', key, 'ok', 'codec', 'result')
    return {'replay', outcome[1], outcome[2], outcome[3]}
  end
  if state == 'in_doubt' then return in_doubt() end
  if owner == ARGV[3] then return {'acquired', fence, tonumber(attempts)} end
  if now < lease_until then return {'in_progress', lease_until - now} end
  if state == 'started' and not (may_repeat(effect) and may_repeat(ARGV[5])) then
    doubt()
    return in_doubt()
  end
  return acquire()
end

local function renew(as, lease, ...)
  put(expiry(as, effect, now + lease, retention), 'lease_until', now + lease, ...)
end

local function finish(ok, codec, result)
  put(now + retention, 'state', 'done', 'ok', ok, 'codec', codec, 'result', result, 'lease_until', now)
end

if operation == 'resolve' then
  local orphaned = state and (state == 'in_doubt' or (state ~= 'done' and lease_until <= now))
  if not orphaned or (ARGV[3] ~= '' and tonumber(ARGV[3]) ~= fence) then return {'stale'} end
  if ARGV[4] == 'done' then finish(ARGV[5], ARGV[6], ARGV[7]) else call('DEL', key) end
  return {'held'}
end

if operation == 'fail' and ARGV[5] == 'no_effect' and not state then return {'held'} end
if not state or owner ~= ARGV[3] or fence ~= tonumber(ARGV[4]) then return {'stale'} end
if operation == 'complete' and state == 'done' then return {'held'} end
if state ~= 'claimed' and state ~= 'started' then return {'stale'} end

if operation == 'start' then
  if state == 'claimed' then
    renew('started', ARGV[5], 'state', 'started', 'started', now)
  else
    renew('started', ARGV[5])
  end
elseif operation == 'heartbeat' then
  if ARGV[6] ~= '' then renew(state, ARGV[5], 'note', ARGV[6]) else renew(state, ARGV[5]) end
elseif operation == 'complete' then
  finish(ARGV[5], ARGV[6], ARGV[7])
elseif operation == 'fail' then
  if ARGV[5] == 'no_effect' or state == 'claimed' then
    call('DEL', key)
  elseif may_repeat(effect) then
    renew(state, 0)
  else
    doubt()
  end
end
return {'held'}
