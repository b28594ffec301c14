-- Is this node still the one that it was? ARGV[1]: run id of the server, '' if the client may not know. ARGV[2]: seconds that it is
-- up, 1 if it syncs every write before it answers, 1 if the client vouches for it, the longest
-- lease, and when the client dialled, counted. ARGV[3]: the key of its own mark. Gives {born, longest, 1 if every write is synced, now}; see vote.lua.
--
-- Another run id means a restart: what the old run had promised is known only if it synced every
-- write, and this one too. No marker means a node that is new, was emptied, or has lost everything.
local key, run = KEYS[1], ARGV[1]
local up, always, vouched, longest, dialled = struct.unpack('>ddddd', ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('GET', key)
local born = now - up * 1000000
-- On a server without any key the set of busy locks is complete from the start: see the Redis engine's fill.lua.
if not stored and redis.call('DBSIZE') == 0 then
    redis.call('SADD', string.sub(key, 1, -5) .. 'busy', '')
end
if stored then
    local old_born, old_longest, old_always, old_run = struct.unpack('>ddds', stored)
    longest = old_longest > longest and old_longest or longest
    if run == '' then
        run = old_run
    end
    if old_run == run then
        born = old_born
        always = always == 1 and old_always or 0
    elseif always == 1 and old_always == 1 then
        born = old_born
    end
end
if vouched == 1 then
    born = 0
end
-- Nothing can be under way on a connection before the first. A dial that was given up may come late: then
-- the mark of a later one stays.
if dialled > 0 and dialled > tonumber(redis.call('GET', ARGV[3]) or 0) then
    redis.call('SET', ARGV[3], string.format('%.0f', dialled), 'EX', 86400)
end
redis.call('SET', key, struct.pack('>ddds', born, longest, always, run))
return {born, longest, always, now}
