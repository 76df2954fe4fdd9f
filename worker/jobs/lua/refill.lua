-- Guarantees: each id that it returns is returned to one caller, in the order in which the jobs came.
-- KEYS: the broker's list. ARGV: prefix, queue, max_published, announce_ms, limit. Returns ids to publish.
return take_unpublished(ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
