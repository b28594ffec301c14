-- What every command begins with: the time, and this node's record of the lock.
--
-- The record is one string at KEYS[1]: a number by which it is known; the last fence that this node
-- answered with, the last break (its fence, its time); then the one vote that it can have out: fence,
-- end of its lease, since when, min_hold, round; until when somebody waits for it, when it was given
-- back, how many were told so; owner, attempt, "pid host"; and who broke it. A vote whose lease is
-- over counts as none. One without attempt was given back before its min_hold was over: nobody's, and
-- still in the way.
--
-- A vote is known by attempt and round: a client that asks again asks in a new round, so that a
-- release of an old round that comes late on another connection cannot take the new vote away.
--
-- PREFIX:busy is the set of the keys of all locks with `ends` in their record, which is what a listing
-- reads: see the Redis engine's fill.lua. It changes in the same step as the record.
--
-- Nothing stays for ever: a day after its last use a lock is gone.
--define RECORD '>I4dddddddddddssss' OURS 0x7265646c LEAST 96 DAY 86400000000
--define BUSY_SET string.sub(key,1,string.find(key,'{',1,true)-1)..'busy'
--define GRANTED 0 BUSY 2 LOST 3 BROKEN 4 RESUMED 5 RELEASED 7 QUIET 9 UNMARKED 10 STALE 11
local call, key = redis.call, KEYS[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = call('GET', key)
local last, broken, broken_at, fence, ends, since, min_hold, round = 0, 0, 0, 0, 0, 0, 0, 0
local wanted, freed, listeners, ours = 0, 0, 0, 0
local owner, attempt, info, by = '', '', '', ''
if stored and (#stored < LEAST or struct.unpack('>I4', stored) ~= OURS) then
    return redis.error_reply('NOTOURS the key holds something that is no lock of this kind')
elseif stored then
    ours, last, broken, broken_at, fence, ends, since, min_hold, round, wanted, freed,
        listeners, owner, attempt, info, by = struct.unpack(RECORD, stored)
end
local live, was_busy = ends > now, ends > 0

local function save()
    local keep = ends > now and ends - now or 0
    call('SET', key, struct.pack(RECORD, OURS, last, broken, broken_at, fence, ends, since, min_hold,
        round, wanted, freed, listeners, owner, attempt, info, by), 'PX', math.ceil((keep + DAY) / 1000))
    if (ends > 0) ~= was_busy then
        call(ends > 0 and 'SADD' or 'SREM', BUSY_SET, key)
        was_busy = ends > 0
    end
end

-- Tells those who wait that it is free, whose it was, and how many they are about. Who has not been
-- turned away here for a while is not listening.
local function tell_free(whose)
    if wanted <= now then
        return
    end
    listeners = call('PUBLISH', key .. ':free', string.format('%.0f %s', listeners, whose))
end
