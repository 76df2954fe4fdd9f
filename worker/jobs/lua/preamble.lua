-- Shared by all scripts of the ledger. KEYS[1] is the job's record, ARGV[1] the prefix of all keys.
-- The sets' keys follow from the record's queue, so they are not among KEYS: on a Redis cluster the prefix needs a
-- {hash tag}.
local SCHEMA = 1
local FINAL = {succeeded = true, failed = true, cancelled = true, expired = true}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)  -- ms; one clock for all machines

-- An announcement's ms with its µs, `nth` of those that a script makes: each has its own, since whether a message was lost
-- is told from their order.
local function announcement(nth)
  return string.format('%.3f', time[1] * 1000 + (time[2] + (nth or 0)) / 1000)
end

-- Every unfinished job is in one of two sets of its queue: those that wait, scored by the ms at which the reconciler
-- must look at them, and those that are leased, scored by the end of the lease. Apart, so that a dead worker's jobs are
-- found at once however long the backlog is.
local function due_key(queue)
  return ARGV[1] .. ':due:' .. queue
end

local function leases_key(queue)
  return ARGV[1] .. ':leases:' .. queue
end

-- The newest announcement (ms) of a queue whose message a worker has taken. Messages are taken in order, so an older
-- one that is still unclaimed was lost. Those that were put first in the list say nothing of the others.
local function passed_key(queue)
  return ARGV[1] .. ':passed:' .. queue
end

-- The broker's list of a queue; `names.message_list_key` is the same.
local function messages_key(queue)
  return ARGV[1] .. ':broker:' .. queue
end

-- Ids for which the broker's list has no room yet (max_published), in the order in which they came. They may have been
-- claimed or have ended meanwhile, and are then passed over.
local function unpublished_key(queue)
  return ARGV[1] .. ':unpublished:' .. queue
end

-- The announced_ms of a job in that list. A release that knows no such list compares it, and so takes none for lost
-- while there are messages. `records.UNPUBLISHED` is the same.
local UNPUBLISHED = 2 ^ 53
-- Such a job is looked at for the case that the list itself is lost: so much later than others, for a long backlog to
-- cost little.
local UNPUBLISHED_PATIENCE = 40
local MAX_PASSED_OVER = 100

-- Every unfinished job of a queue, scored by the ms at which it came: the first is the oldest.
local function ages_key(queue)
  return ARGV[1] .. ':ages:' .. queue
end

-- Totals since the ledger began, for metrics, by queue. Counted here, in the script that changes the job: a worker that
-- dies takes its own counts along, and these are the ones that tell of it.
local function count(what, queue, number)
  redis.call('HINCRBY', ARGV[1] .. ':totals', what .. ':' .. queue, number or 1)
end

-- When (ms) a worker last took a message of a queue that was not put first: by then all were taken that had been put before
-- it, and one of these that is unclaimed was lost. That another of them was taken says nothing: the last put is the first.
local function taken_key(queue)
  return ARGV[1] .. ':taken:' .. queue
end

-- The unfinished jobs that need a reference clip; `names.reference_users_key` is the same.
local function users_key(job)
  return job.reference_key and job.reference_key ~= '' and ARGV[1] .. ':users:' .. job.reference_key
end

-- The record's small fields, numbers as numbers, absent ones nil; nil where there is no record.
local function read(key)
  local fields = {'id', 'schema', 'status', 'queue', 'token', 'attempts', 'lease_ms', 'expires_ms', 'announced_ms',
                  'first_ms', 'counted', 'cancel', 'nonce', 'reference_key'}
  local values, job = redis.call('HMGET', key, unpack(fields)), {}
  if not values[1] then return nil end
  for i, field in ipairs(fields) do job[field] = values[i] or nil end
  for _, field in ipairs({'schema', 'token', 'attempts', 'lease_ms', 'expires_ms', 'announced_ms', 'first_ms'}) do
    job[field] = tonumber(job[field])
  end
  job.schema = job.schema or math.huge  -- of a version that nobody here knows
  return job
end

local function is_leased(job)
  return job.lease_ms ~= nil and job.lease_ms > now
end

local function is_expired(job)
  return job.expires_ms ~= nil and job.expires_ms <= now
end

-- ms at which the reconciler must look at a waiting job: at `ms`, or when it expires if that is sooner.
local function look_at(job, ms)
  return job.expires_ms and math.min(ms, job.expires_ms) or ms
end

-- The job's end. Nothing changes it from here on; Redis forgets it after the retention time. Who listens is told.
local function finish(key, job, status, retention_ms, ...)
  redis.call('HSET', key, 'status', status, 'finished_ms', now, ...)
  redis.call('HDEL', key, 'lease_ms', 'nonce')
  redis.call('ZREM', due_key(job.queue), job.id)
  redis.call('ZREM', leases_key(job.queue), job.id)
  redis.call('ZREM', ages_key(job.queue), job.id)
  count('ended:' .. status, job.queue)
  count('attempts', job.queue, job.attempts)
  if users_key(job) then redis.call('SREM', users_key(job), job.id) end
  redis.call('PEXPIRE', key, retention_ms)
  redis.call('PUBLISH', ARGV[1] .. ':ended', job.id)
end

local function extend(key, job, lease_ms)
  redis.call('HSET', key, 'lease_ms', now + lease_ms)
  redis.call('ZREM', due_key(job.queue), job.id)
  redis.call('ZADD', leases_key(job.queue), now + lease_ms, job.id)
end

-- Back to waiting, looked at when `due_ms` comes. The token moves on, so whoever held the lease is fenced off.
local function requeue(key, job, due_ms)
  redis.call('HINCRBY', key, 'token', 1)
  redis.call('HSET', key, 'status', 'queued')
  redis.call('HDEL', key, 'lease_ms', 'nonce', 'worker', 'counted')
  redis.call('ZREM', leases_key(job.queue), job.id)
  redis.call('ZADD', due_key(job.queue), look_at(job, due_ms), job.id)
end

local function is_unpublished(job)
  return job.announced_ms == UNPUBLISHED and not job.first_ms
end

-- Whether an id at the head of the unpublished ones still waits there. A newer release's are told of, for its workers.
local function may_be_published(job)
  return job ~= nil and (job.schema > SCHEMA or (is_unpublished(job) and not FINAL[job.status]))
end

-- A job that comes now: true where it is to be published, false where it waits behind those that are not published yet.
local function line_up(key, job, max_published, announce_ms)
  local waiting = unpublished_key(job.queue)
  for _ = 1, MAX_PASSED_OVER do  -- so that nothing has to wait behind ids for which nobody waits
    local head = redis.call('LINDEX', waiting, 0)
    if not head or may_be_published(read(ARGV[1] .. ':job:' .. head)) then break end
    redis.call('LPOP', waiting)
  end
  if redis.call('EXISTS', waiting) == 0 and redis.call('LLEN', messages_key(job.queue)) < max_published then
    redis.call('HSET', key, 'announced_ms', announcement())
    redis.call('ZADD', due_key(job.queue), look_at(job, now + announce_ms), job.id)
    return true
  end
  redis.call('HSET', key, 'announced_ms', UNPUBLISHED)
  redis.call('RPUSH', waiting, job.id)
  redis.call('ZADD', due_key(job.queue), look_at(job, now + UNPUBLISHED_PATIENCE * announce_ms), job.id)
  return false
end

-- `message` is what a worker takes for a message, with words in capitals where this one's own follow.
local function publish(queue, id, announced_ms, message)
  local own = {JOB_ID = id, MESSAGE_ID = id .. '-' .. announced_ms, QUEUE = queue}
  redis.call('LPUSH', messages_key(queue), (string.gsub(message, '[A-Z_]+', own)))
end

-- Publishes what the broker's list has room for, `limit` ids at most; how many those were.
local function publish_waiting(queue, message, max_published, announce_ms, limit)
  local waiting, messages, num_published = unpublished_key(queue), messages_key(queue), 0
  if redis.call('EXISTS', waiting) == 0 then return 0 end
  local room = math.min(limit, max_published - redis.call('LLEN', messages))
  for _ = 1, room + MAX_PASSED_OVER do
    local id = num_published < room and redis.call('LPOP', waiting)
    if not id then break end
    local key = ARGV[1] .. ':job:' .. id
    local job = read(key)
    if may_be_published(job) then
      local announced_ms = announcement(num_published)
      if job.schema <= SCHEMA then
        redis.call('HSET', key, 'announced_ms', announced_ms)
        redis.call('ZADD', due_key(queue), look_at(job, now + announce_ms), id)
      end
      publish(queue, id, announced_ms, message)
      num_published = num_published + 1
    end
  end
  return num_published
end
