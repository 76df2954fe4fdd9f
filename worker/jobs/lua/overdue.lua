-- Guarantees: each id that it returns is returned to one caller, once in announce_ms; at most `limit` jobs of each set
-- are looked at.
-- A waiting job is announced again only when its message was lost: the list is empty, or messages that lay behind it
-- were taken before it. Otherwise a long backlog would be doubled with every round. What is announced here is to be put
-- first: it has waited longest.
-- KEYS: the broker's list. ARGV: prefix, queue, limit, announce_ms, retention_ms, spares_leases (1: no lease is taken
-- away). Returns ids.
local queue, limit = ARGV[2], tonumber(ARGV[3])
local announce_ms, retention_ms, spares_leases = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local due, leases = due_key(queue), leases_key(queue)
local ids = {}

local function announce(id, key)
  redis.call('HSET', key, 'first_ms', now)
  ids[#ids + 1] = id
end

-- Calls look(id, key, job) for the jobs of `set` whose time has come; those of a newer release are only announced, for
-- their own workers to claim, and those whose record was removed by hand are dropped.
local function each(set, look)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, limit)) do
    local key = ARGV[1] .. ':job:' .. id
    local job = read(key)
    if not job then
      redis.call('ZREM', set, id)
    elseif job.schema > SCHEMA then
      redis.call('ZADD', set, now + announce_ms, id)
      ids[#ids + 1] = id
    else
      look(id, key, job)
    end
  end
end

local function lapse(id, key, job)
  count('lapsed', queue)
  if job.cancel then  -- its worker died before it could heed the cancel
    finish(key, job, 'cancelled', retention_ms)
  elseif is_expired(job) then
    finish(key, job, 'expired', retention_ms)
  else
    requeue(key, job, now + announce_ms)
    announce(id, key)
  end
end

if not spares_leases then each(leases, lapse) end

local passed = tonumber(redis.call('GET', passed_key(queue)) or 0)
local taken = tonumber(redis.call('GET', taken_key(queue)) or 0)
local drained = redis.call('LLEN', KEYS[1]) == 0
local none_unpublished = redis.call('EXISTS', unpublished_key(queue)) == 0

each(due, function(id, key, job)
  local wait_ms = announce_ms
  if is_expired(job) then return finish(key, job, 'expired', retention_ms) end
  local lost = drained or job.announced_ms <= passed
  if job.first_ms then lost = drained or job.first_ms < taken end
  if is_unpublished(job) then lost = none_unpublished end
  if lost then
    announce(id, key)
  elseif is_unpublished(job) then
    wait_ms = UNPUBLISHED_PATIENCE * announce_ms
  else  -- looked at ever less often, so that a long backlog costs little
    wait_ms = math.min(math.max(wait_ms, now - (job.first_ms or job.announced_ms)), 4 * announce_ms)
  end
  redis.call('ZADD', due, look_at(job, now + wait_ms), id)
end)
if #ids > 0 then count('announced', queue, #ids) end

-- The oldest that are no longer unfinished: removed by hand, or ended by a worker of a release that kept no ages.
for _, id in ipairs(redis.call('ZRANGE', ages_key(queue), 0, 99)) do
  local job = read(ARGV[1] .. ':job:' .. id)
  if not job or (job.schema <= SCHEMA and FINAL[job.status]) then redis.call('ZREM', ages_key(queue), id) end
end
return ids
