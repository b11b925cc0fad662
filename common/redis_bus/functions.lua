#!lua name=chairlift

-- What must be atomic. Each function makes at most one write, then publishes: an append-only file
-- that ends anywhere still holds whole steps only. All are flagged allow-oom, so that what runs can
-- finish on a full server. All may be called again as they were: the second call changes nothing.
-- Functions of the scheduler take the lease as their first key and their epoch as first argument.

local GREATEST = '18446744073709551615-18446744073709551615'

local function slice(list, first, last)
  return { unpack(list, first, last or #list) }
end

local function publish(args, first)
  for i = first, #args, 2 do
    redis.call('PUBLISH', args[i], args[i + 1])
  end
end

local function is_closed(stream)
  return #redis.call('XRANGE', stream, GREATEST, GREATEST) == 1
end

-- Whether this very entry is in the stream.
local function stands(stream, id, fields)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if not entry or #entry[2] ~= #fields then
    return false
  end
  for i, value in ipairs(fields) do
    if entry[2][i] ~= value then
      return false
    end
  end
  return true
end

-- What XADD says where the last id is greater, and where it is the greatest.
local REFUSALS = { 'equal or smaller', 'exhausted the last possible ID' }

-- Whether the XADD was done: not if its id is not greater than the last one.
local function add(command)
  local reply = redis.pcall(unpack(command))
  if type(reply) ~= 'table' or not reply.err then
    return reply ~= false
  end
  for _, refusal in ipairs(REFUSALS) do
    if string.find(reply.err, refusal, 1, true) then
      return false
    end
  end
  return redis.call(unpack(command)) -- another error: raise it
end

local function add_once(stream, options, id, fields)
  local command = { 'XADD', stream }
  for _, part in ipairs(options) do
    command[#command + 1] = part
  end
  command[#command + 1] = id
  for _, part in ipairs(fields) do
    command[#command + 1] = part
  end
  if add(command) or stands(stream, id, fields) then
    return 'OK'
  end
  return 'REFUSED'
end

-- Lease, of who leads or of a GPU: KEYS lease

-- ARGS holder, holder seen, epoch seen, beat seen. The new epoch, or nil.
local function lease_take(keys, args)
  local lease = redis.call('HMGET', keys[1], 'holder', 'epoch', 'beat')
  local next_epoch = string.format('%d', tonumber(args[3]) + 1)
  if lease[1] == args[1] and lease[2] == next_epoch and lease[3] == '0' then
    return next_epoch -- an earlier try landed
  end
  local as_seen = lease[1] == args[2] and lease[2] == args[3] and lease[3] == args[4]
  if lease[2] and not as_seen then
    return false
  end
  redis.call('HSET', keys[1], 'holder', args[1], 'epoch', next_epoch, 'beat', '0')
  return next_epoch
end

-- ARGS holder, epoch. The new beat, or nil.
local function lease_renew(keys, args)
  local lease = redis.call('HMGET', keys[1], 'holder', 'epoch')
  if lease[1] ~= args[1] or lease[2] ~= args[2] then
    return false
  end
  return redis.call('HINCRBY', keys[1], 'beat', 1)
end

-- ARGS holder, epoch. Whoever comes next need not wait; the epoch stays, so that it never goes back.
local function lease_leave(keys, args)
  local lease = redis.call('HMGET', keys[1], 'holder', 'epoch')
  if lease[1] == args[1] and lease[2] == args[2] then
    redis.call('HSET', keys[1], 'holder', '')
  end
  return 'OK'
end

-- Scheduler: KEYS lease, …; ARGS epoch, …. OK, FENCED or REFUSED.

local function of_leader(act)
  return function(keys, args)
    if redis.call('HGET', keys[1], 'epoch') ~= args[1] then
      return 'FENCED'
    end
    return act(keys, args)
  end
end

-- KEYS lease, steps; ARGS epoch, id, plan
local function plan(keys, args)
  return add_once(keys[2], {}, args[2], { 'plan', args[3] })
end

-- nil: there is no journal
local function has_ended(key)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  return last and string.sub(last[1], -2) == '-2'
end

-- KEYS lease, journal; ARGS epoch, id, number of fields and values, them, (channel, message)…
-- The head first and only once, nothing after an end.
local function journal(keys, args)
  local id, num_parts = args[2], tonumber(args[3])
  local fields = slice(args, 4, 3 + num_parts)
  local ended = has_ended(keys[2])
  local outcome = 'REFUSED'
  if ended or (ended == nil) ~= (id == '0-1') then
    if stands(keys[2], id, fields) then
      outcome = 'OK'
    end
  else
    outcome = add_once(keys[2], {}, id, fields)
  end
  if outcome == 'OK' then
    publish(args, 4 + num_parts)
  end
  return outcome
end

-- KEYS lease, hash; ARGS epoch, field, value
local function set(keys, args)
  redis.call('HSET', keys[2], args[2], args[3])
  return 'OK'
end

-- KEYS lease, owners, log, journal; ARGS epoch, request, worker
local function set_owner(keys, args)
  if has_ended(keys[4]) ~= false then
    return 'REFUSED'
  end
  if redis.call('EXISTS', keys[3]) == 0 or is_closed(keys[3]) then
    return 'REFUSED'
  end
  redis.call('HSET', keys[2], args[2], args[3])
  return 'OK'
end

-- KEYS lease, suspects, journal; ARGS epoch, request, deaths
local function set_suspect(keys, args)
  if has_ended(keys[3]) ~= false then
    return 'REFUSED'
  end
  redis.call('HSET', keys[2], args[2], args[3])
  return 'OK'
end

local DROPS = { XDEL = true, XTRIM = true, HDEL = true, PEXPIRE = true }

-- KEYS lease, key; ARGS epoch, command, its arguments…
local function drop(keys, args)
  if not DROPS[args[2]] then
    return redis.error_reply('ERR drop does no ' .. args[2])
  end
  redis.call(args[2], keys[2], unpack(args, 3))
  return 'OK'
end

-- KEYS lease, stream; ARGS epoch, id, entries to keep at least, JSON
local function show(keys, args)
  return add_once(keys[2], { 'MAXLEN', '~', args[3] }, args[2], { 'json', args[4] })
end

-- KEYS lease, log or steps; ARGS epoch
local function close(keys, args)
  return add_once(keys[2], {}, GREATEST, { 'closed', '1' })
end

-- Worker

-- KEYS log; ARGS id, result, (channel, message)…
local function commit(keys, args)
  local outcome = 'OK'
  if not add({ 'XADD', keys[1], 'NOMKSTREAM', args[1], 'result', args[2] }) then
    if redis.call('EXISTS', keys[1]) == 0 then
      return 'CLOSED'
    end
    -- The entry itself may have been read and trimmed meanwhile; the last id is remembered.
    local info = redis.call('XINFO', 'STREAM', keys[1])
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' and info[i + 1] ~= args[1] then
        return 'CLOSED'
      end
    end
    outcome = 'DUPLICATE'
  end
  publish(args, 3)
  return outcome
end

-- KEYS workers; ARGS worker, hello
local function register(keys, args)
  redis.call('HSET', keys[1], args[1], args[2])
  return 'OK'
end

-- KEYS workers, log; ARGS worker
local function open(keys, args)
  if redis.call('HEXISTS', keys[1], args[1]) == 1 and redis.call('EXISTS', keys[2]) == 0 then
    redis.call('XADD', keys[2], '0-1', 'opened', '1')
  end
  return 'OK'
end

-- KEYS workers; ARGS worker, hello. 1, or 0 if the field is gone.
local function beat(keys, args)
  local stands = redis.call('HEXISTS', keys[1], args[1])
  if stands == 1 then
    redis.call('HSET', keys[1], args[1], args[2])
  end
  return stands
end

-- Gateway

-- KEYS gateways; ARGS gateway, beat as JSON
local function gateway_beat(keys, args)
  redis.call('HSET', keys[1], args[1], args[2])
  return 'OK'
end

-- KEYS secret; ARGS field, candidate. The first candidate stands.
local function secret(keys, args)
  redis.call('HSETNX', keys[1], args[1], args[2])
  return redis.call('HGET', keys[1], args[1])
end

-- KEYS control; ARGS field, value…. A second call adds a second entry, which asks for the same.
local function control(keys, args)
  return redis.call('XADD', keys[1], '*', unpack(args))
end

local function register_function(name, callback)
  redis.register_function({
    function_name = 'chairlift_' .. name,
    callback = callback,
    flags = { 'allow-oom' },
  })
end

register_function('lease_take', lease_take)
register_function('lease_renew', lease_renew)
register_function('lease_leave', lease_leave)
register_function('plan', of_leader(plan))
register_function('journal', of_leader(journal))
register_function('set', of_leader(set))
register_function('set_owner', of_leader(set_owner))
register_function('set_suspect', of_leader(set_suspect))
register_function('drop', of_leader(drop))
register_function('show', of_leader(show))
register_function('close', of_leader(close))
register_function('commit', commit)
register_function('register', register)
register_function('open', open)
register_function('beat', beat)
register_function('gateway_beat', gateway_beat)
register_function('secret', secret)
register_function('control', control)
