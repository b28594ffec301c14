-- Is this still the server that it was? KEYS[1]: the marker, PREFIX:server. ARGV[1]: which server this is: its run
-- id, and the replication id that it took when it was promoted. ARGV[2]: for how long it has run without being promoted (-1:
-- not known), the longest lease, how many replicas must acknowledge a grant, and what is wanted: 0 to look,
-- 1 after so many replicas have acknowledged the marker, 2 to vouch that nobody holds anything, 3 to take over what a
-- master of a cluster has brought here that is named in ARGV[3] (see adopt.h): then also the time there, and 1 if this
-- server has granted before.
-- Gives {how long nothing is granted, replicas wanted, replicas that acknowledged}.
--
-- The marker is replicated with the locks. Another server in it means a restart or a failover: what was granted
-- last may be missing in the data. So nothing is granted until the longest lease has passed. That time begins when
-- as many of its replicas as a grant needs have acknowledged the marker: from then on they acknowledge nothing to an older
-- server, and no holder there can renew its lease. Until then nothing is granted at all. Where a grant needs none, it
-- begins when the server started, or when it is noticed that it was promoted.
--
--   opens    when grants may begin, by this server's clock; 0: at once
--   base     fences follow the clock, but are not below this
--   ceiling  no fence above it was given: reserved ahead, see guard.lua. A server that takes over begins
--            above it, whatever its clock says and whichever of the last records it lacks. It is never so far
--            ahead that the clock has not passed it when the quiet period ends: a server that has lost
--            everything, the marker too, has its clock alone
--   longest, since when, replicas wanted, replicas that acknowledged, and then which server
--define MARKER '>ddddddd' ID_AT 57 MANY 1000000 NEVER 1000000000000000000
local call, key, id = redis.call, KEYS[1], ARGV[1]
local up, longest, asked, step = struct.unpack('>dddd', ARGV[2])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local base, ceiling, since, acked = 0, 0, up < 0 and now or now - up, -1
local wanted = asked
local stored = call('GET', key)
local same = stored and string.sub(stored, ID_AT) == id
if step == 3 then
    local opens, base, ceiling, old_longest = struct.unpack('>dddd', stored or string.rep('\0', 56))
    local there, granted = struct.unpack('>dd', ARGV[2], 33)
    if not stored or string.sub(stored, ID_AT) ~= ARGV[3] or opens > there
        or granted == 0 and up < old_longest * 1.01 then
        return {0, 0, 0}
    end
    local replicas = string.sub(stored, 41, ID_AT - 1)
    call('SET', key, struct.pack('>ddddd', 0, base, ceiling, old_longest, 0) .. replicas .. id)
    return {0, 0, 1}
end
if stored then
    local _, old_base, old_ceiling, old_longest, old_since, old_wanted, old_acked =
        struct.unpack(MARKER, stored)
    base, ceiling = old_base, old_ceiling
    longest, wanted = math.max(longest, old_longest), step == 2 and asked or math.max(asked, old_wanted)
    if same then
        since, acked = old_since, old_acked
    end
end
if not same then
    base = stored and math.max(base, ceiling + 1) or 0
    ceiling = base + longest / 2
end
if step == 2 then
    since, acked = 0, MANY
elseif acked < wanted and step == 1 and same and asked == wanted then
    since, acked = now, wanted
elseif wanted == 0 and acked < 0 then
    acked = 0
end
-- So far that the first grant after the quiet period is below it.
if not same or step > 0 then
    ceiling = math.max(ceiling, now + longest * 1.5)
end
local opens = acked < wanted and NEVER or since == 0 and 0 or since + longest * 1.01
local packed = struct.pack(MARKER, opens, base, ceiling, longest, since, wanted, acked) .. id
if packed ~= stored then
    call('SET', key, packed)
end
return {opens > now and opens - now or 0, wanted, acked}
