-- One operation on one record; the same as protocol.rs, which says why. A test holds the two equal.
--
-- KEYS[1]: the record. ARGV: the time in ms, or '' for the server's; the operation; then
--   begin:     owner, fingerprint, effect, tool, lease, retention, '1' to start at once
--   start:     owner, fence, lease
--   heartbeat: owner, fence, lease, note ('' for none)
--   complete:  owner, fence, ok, codec, result
--   fail:      owner, fence, 'no_effect' or 'unknown'
--   resolve:   fence ('' for any), 'not_done', or 'done', ok, codec, result
--   read
-- Returns the answer's name and what belongs to it; of 'read' the record's values, or nothing.
--
-- A record is one packed string, which takes half of a hash's time and, with a result in it, a third of its memory.
-- While this runs, the server does nothing else.

local call, key, operation = redis.call, KEYS[1], ARGV[2]
-- A record that only a decision may end has a TTL all the same, ten years: no key is ever without.
local NEVER = 315360000000

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- '' stands for none, and for never.
local state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated, started
local expires, note, ok, codec, result
local packed = call('GET', key)
if packed then
  state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated, started,
    expires, note, ok, codec, result = cmsgpack.unpack(packed)
  if operation == 'read' then
    return {state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated,
      started, expires, note, ok, codec, result}
  end
  now = math.max(now, updated)
  if expires ~= '' and expires <= now then
    call('DEL', key)
    state = nil
  end
end
if operation == 'read' then return {} end

-- Writes the record. Redis may forget it at `forget`; nil is never.
local function put(forget)
  local record = cmsgpack.pack(state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention,
    created, now, started, forget or '', note, ok, codec, result)
  call('SET', key, record, 'PX', math.max(forget and forget - now or NEVER, 1))
end

local function may_repeat(kind) return kind ~= 'at_most_once' end

-- Writes a record that is being worked on.
local function put_open()
  put((state ~= 'started' or may_repeat(effect)) and lease_until + retention or nil)
end

local function acquire()
  if state then
    fence, attempts = fence + 1, attempts + 1
  else
    fence, attempts, created = 1, 1, now
  end
  state = ARGV[9] == '1' and 'started' or 'claimed'
  owner, fingerprint, effect, tool = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  lease_until, retention = now + ARGV[7], tonumber(ARGV[8])
  started = state == 'started' and now or ''
  note, ok, codec, result = '', '', '', ''
  put_open()
  return {'acquired', fence, attempts}
end

local function renew(lease)
  lease_until = now + lease
  put_open()
end

local function doubt()
  state, lease_until = 'in_doubt', now
  put(nil)
end

local function in_doubt() return {'in_doubt', fence, started ~= '' and started or created} end

local function finish(...)
  state, lease_until = 'done', now
  ok, codec, result = ...
  put(now + retention)
end

if operation == 'begin' then
  if not state then return acquire() end
  if fingerprint ~= ARGV[4] then return {'mismatch'} end
  if state == 'done' then return {'replay', ok, codec, result} end
  if state == 'in_doubt' then return in_doubt() end
  if owner == ARGV[3] then return {'acquired', fence, attempts} end
  if now < lease_until then return {'in_progress', lease_until - now} end
  if state == 'started' and not (may_repeat(effect) and may_repeat(ARGV[5])) then
    doubt()
    return in_doubt()
  end
  return acquire()
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
  if state == 'claimed' then state, started = 'started', now end
  renew(ARGV[5])
elseif operation == 'heartbeat' then
  if ARGV[6] ~= '' then note = ARGV[6] end
  renew(ARGV[5])
elseif operation == 'complete' then
  finish(ARGV[5], ARGV[6], ARGV[7])
elseif operation == 'fail' then
  if ARGV[5] == 'no_effect' or state == 'claimed' then
    call('DEL', key)
  elseif may_repeat(effect) then
    renew(0)
  else
    doubt()
  end
end
return {'held'}
