-- Guarantees: ids are published in the order in which their jobs came; id and message change places together.
-- KEYS: the broker's list. ARGV: prefix, queue, message, max_published, announce_ms, limit. Returns how many ids it was.
return publish_waiting(ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
