-- One operation on one record; the same as protocol.rs, which says why. A test holds the two equal.
-- A record is made by a plain SET NX of the client; it comes here with what the record then goes through.
--
-- KEYS[1]: the record. ARGV: the time in ms, or '' for the server's; the operation; then
--   begin:     owner, fingerprint, effect, tool, lease, retention, '1' to start at once
--   start:     owner, fence, lease
--   heartbeat: owner, fence, lease, note ('' for none)
--   complete:  owner, fence, ok, codec, result
--   fail:      owner, fence, 'no_effect' or 'unknown'
--   resolve:   fence ('' for any), 'not_done', or 'done', ok, codec, result
--   read
-- Returns the answer's name and what belongs to it; of 'read' the record's values. Where there is no record, 'begin'
-- and 'read' return nil.
--
-- A record is one packed string, which takes half of a hash's time and, with a result in it, a third of its memory.
-- While this runs, the server does nothing else: there are no functions, since each run would make them anew.

local call, key, operation = redis.call, KEYS[1], ARGV[2]
-- The TTL of a record that only a decision may end; mod.rs has the same.
local NEVER = 315360000000

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- '' stands for none, and for never.
local state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated, started
local expires, note, ok, codec, result
local packed, left = call('GET', key), call('PTTL', key)
if packed then
  state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated, started,
    expires, note, ok, codec, result = cmsgpack.unpack(packed)
  if updated == 0 then
    -- Who made it had no clock to ask: its times count from when it was set, which what is left of its TTL tells.
    updated = now - (expires == '' and NEVER or expires) + left
    created, lease_until = updated, updated + lease_until
    if started ~= '' then started = updated end
    if expires ~= '' then expires = updated + expires end
  end
  if operation == 'read' then
    return {state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, updated,
      started, expires, note, ok, codec, result}
  end
  if updated > now then now = updated end
  if expires ~= '' and expires <= now then
    call('DEL', key)
    state = nil
  end
elseif operation == 'begin' then
  -- For nothing, but a user who may not do it is found out before there is an effect.
  call('DEL', key)
end
if not state and (operation == 'begin' or operation == 'read') then return nil end

-- What becomes of the record: 'acquired', 'renewed', 'done', 'in_doubt' or 'dropped'.
local becomes
if operation == 'begin' then
  if fingerprint ~= ARGV[4] then
    return {'mismatch'}
  elseif state == 'done' then
    return {'replay', ok, codec, result}
  elseif state == 'in_doubt' then
    return {'in_doubt', fence, started ~= '' and started or created}
  elseif owner == ARGV[3] then
    return {'acquired', fence, attempts}
  elseif now < lease_until then
    return {'in_progress', lease_until - now}
  elseif state == 'started' and (effect == 'at_most_once' or ARGV[5] == 'at_most_once') then
    becomes = 'in_doubt'
  else
    becomes = 'acquired'
  end
elseif operation == 'resolve' then
  local orphaned = state and (state == 'in_doubt' or (state ~= 'done' and lease_until <= now))
  if not orphaned or (ARGV[3] ~= '' and tonumber(ARGV[3]) ~= fence) then return {'stale'} end
  becomes = ARGV[4] == 'done' and 'done' or 'dropped'
elseif operation == 'fail' and ARGV[5] == 'no_effect' and not state then
  return {'held'}
elseif not state or owner ~= ARGV[3] or fence ~= tonumber(ARGV[4]) then
  return {'stale'}
elseif operation == 'complete' and state == 'done' then
  return {'held'}
elseif state ~= 'claimed' and state ~= 'started' then
  return {'stale'}
elseif operation == 'complete' then
  becomes = 'done'
elseif operation ~= 'fail' then
  becomes = 'renewed'
elseif ARGV[5] == 'no_effect' or state == 'claimed' then
  becomes = 'dropped'
else
  becomes = effect == 'at_most_once' and 'in_doubt' or 'renewed'
end

local answer = {'held'}
if becomes == 'acquired' then
  fence, attempts = fence + 1, attempts + 1
  owner, effect, tool = ARGV[3], ARGV[5], ARGV[6]
  lease_until, retention = now + ARGV[7], tonumber(ARGV[8])
  if ARGV[9] == '1' then state, started = 'started', now else state, started = 'claimed', '' end
  note, ok, codec, result = '', '', '', ''
  answer = {'acquired', fence, attempts}
elseif becomes == 'renewed' then
  if operation == 'start' and state == 'claimed' then state, started = 'started', now end
  if operation == 'heartbeat' and ARGV[6] ~= '' then note = ARGV[6] end
  lease_until = operation == 'fail' and now or now + ARGV[5]
elseif becomes == 'in_doubt' then
  state, lease_until = 'in_doubt', now
  if operation == 'begin' then answer = {'in_doubt', fence, started ~= '' and started or created} end
elseif becomes == 'done' then
  state, lease_until = 'done', now
  ok, codec, result = ARGV[5], ARGV[6], ARGV[7]
else
  call('DEL', key)
  return answer
end

-- After how long Redis may forget it; nil is never.
local ttl
if state == 'done' then
  ttl = retention
elseif state ~= 'in_doubt' and (state ~= 'started' or effect ~= 'at_most_once') then
  ttl = lease_until + retention - now
end
expires = ttl and now + ttl or ''
if not ttl then ttl = NEVER elseif ttl < 1 then ttl = 1 end
packed = cmsgpack.pack(state, owner, fence, fingerprint, effect, tool, attempts, lease_until, retention, created, now,
  started, expires, note, ok, codec, result)
call('SET', key, packed, 'PX', ttl)
return answer
