-- What every command begins with: the time, and this node's record of the lock.
--
-- The record is one string at KEYS[1]: a number by which it is known; the last fence that this node
-- answered with, the last break (its fence, its time); then the one vote that it can have out: fence,
-- end of its lease, since when, min_hold, round; until when somebody waits for it, until when it is
-- kept for a waiter, and for which one; owner, attempt, "pid host"; and who broke it. A vote whose lease
-- is over counts as none. One without attempt was given back before its min_hold was over: nobody's, and
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
local wanted, kept, heir, ours = 0, 0, 0, 0
local owner, attempt, info, by = '', '', '', ''
if stored and (#stored < LEAST or struct.unpack('>I4', stored) ~= OURS) then
    return redis.error_reply('NOTOURS the key holds something that is no lock of this kind')
elseif stored then
    ours, last, broken, broken_at, fence, ends, since, min_hold, round, wanted, kept,
        heir, owner, attempt, info, by = struct.unpack(RECORD, stored)
end
local live, was_busy = ends > now, ends > 0

local function save()
    local keep = ends > now and ends - now or 0
    call('SET', key, struct.pack(RECORD, OURS, last, broken, broken_at, fence, ends, since, min_hold,
        round, wanted, kept, heir, owner, attempt, info, by), 'PX', math.ceil((keep + DAY) / 1000))
    if (ends > 0) ~= was_busy then
        call(ends > 0 and 'SADD' or 'SREM', BUSY_SET, key)
        was_busy = ends > 0
    end
end

-- Hints: the handles that wait for this lock, by arrival (see vote.lua). They decide who is told that it is
-- free and who is asked to wait a moment longer, and nothing else: without them, or with wrong ones, a vote
-- is worth the same. They end by themselves when nobody has been turned away here for a while.
--define HINTS key..':hints' WAKE string.sub(key,1,string.find(key,'{',1,true)-1)..'wake:'
--define MOMENT 10000 NOTIFY_MOST 8

-- A handle as a number, exact in a double.
local function number_of(handle)
    return tonumber(string.sub(handle, 1, 12), 16) or 0
end

-- Tells one waiter, the first that listens, and keeps the vote for it for a moment. With min_hold it is told
-- for how long the vote is still in the way.
local function notify_first()
    local left = live and ends - now or 0
    heir, kept = 0, 0
    for _ = 1, wanted > now and NOTIFY_MOST or 0 do
        local first = call('ZRANGE', HINTS, 0, 0)[1]
        if not first then
            wanted = 0
            return
        end
        call('ZREM', HINTS, first)
        if call('PUBLISH', WAKE .. first, string.format('%.0f %.0f %s', fence, left, key)) > 0 then
            heir, kept = number_of(first), now + left + MOMENT
            return
        end
    end
end
