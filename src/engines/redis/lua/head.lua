-- What every command begins with: the time, and the lock's record.
--
-- The record is one string at KEYS[1], numbers first and at fixed places, so that a common command
-- reads few of them and writes only what changes:
--
--   the queue   number of waiters, last place, the place of its head (or one before that), when the
--               head counts as dead
--   a mark      what there is, see below
--   the holder  since, ends and min_hold of the one who holds all of it
--   the rest    till when the record is kept, capacity, last fence
--
-- and behind that `who` of the holder. The marks are
--
--   dibI   nobody holds it and nobody waits; numbers and name of a holder may be left over
--   dibH   one holds all of it, and its fence is the last one; nobody waits
--   dibQ   the same, and there is a queue
--   dibX   anything else: several holders, one given back early, a lock that was broken once; with
--          more numbers before `who`: used, number of holders, the holder's fence, 1 if it was
--          given back early, broken fence, broken at, broken by
--
-- Holders that take a part are in key:h (field -> entry), key:x (by end of lease) and key:f (by
-- fence). Waiters are in key:q, twice: place -> entry and 'o' .. owner -> place, a place being
-- eight bytes. Places are consecutive; who leaves the queue makes a hole, which is skipped once.
--
-- PREFIX:busy is the set of the keys of all locks that somebody holds or waits for, which is what a
-- listing reads. A script that makes an idle lock busy adds its key, one that makes it idle removes
-- it, in the same step as the record; nothing else touches it. See fill.lua for its completeness.
--
-- An entry: number, since, ends, extra, min_hold; then who: owner, attempt, info, wake, weight,
-- lease. `number` is the fence of a holder and the place of a waiter; `ends` is when its lease
-- ends or when it counts as dead; `extra` is 1 for a holder that was given back early, and a
-- waiter's window. The caller sends `who` as it is stored; where it is asked for by name, it is
-- "fence owner\0attempt\0": just what stands in the record where the last fence begins.
--
-- SERVER is the last argument of every command: which server the client believes that it talks to, or nil where
-- it wants no guard. See mark.lua: `quiet` says that nobody may be granted anything yet (for how long; -1: this
-- server has not been looked at), `clock` is what fences follow, and `longest` is the longest lease that is allowed for.
--
-- Replies: {verdict, fence, floor, remaining, capacity, who is in the way}, zeros at the end left
-- out; for the most common ones a single value, which costs least: a fence is granted with its
-- whole lease and nobody beside it, 0 is released, a string is queued and not at the head. Who is
-- in the way is a string: what is left of its lease, its fence, then owner, attempt and info; what
-- is behind that does not count. For the same reason the common
-- commands write with SETRANGE, whose reply is a number: that of SET would be a table. Nothing
-- stays for ever: a day and a lease after its last use a lock is gone. By then the clock is far
-- past its last fence, so that fences keep growing.
--define QUEUE '>I4ddd' HEAD '>I4ddddI4d' REST '>I4I4dddds' ENTRY '>dddddssssI4d' WHO '>ssssI4d'
--define QUEUE_HEAD '>I4dddI4ddddI4d' HEAD_AT 29 FENCE_AT 69 WHO_AT 77
--define HEAD_OFFSET '28' MARK_OFFSET '31' ENDS_OFFSET '40'
--define QUIET 9 UNMARKED 10
--define IDLE 0x64696249 HELD 0x64696248 WAITED_FOR 0x64696251 OTHER 0x64696258
--define DAY 86400000000 HOUR 3600000000 BUSY_SET (KEYS[2]or(string.sub(key,1,string.find(key,'{',1,true)-1)..'busy'))

local time = redis.call('TIME')
local call, now, key = redis.call, time[1] * 1000000 + time[2], KEYS[1]
local stored = call('GET', key)
local mark, since, ends, min_hold, till, capacity, last_fence = IDLE, 0, 0, 0, 0, 0, 0
if stored and #stored < WHO_AT - 1 then
    mark = 0
elseif stored then
    mark, since, ends, min_hold, till, capacity, last_fence = struct.unpack(HEAD, stored, HEAD_AT)
end
local clock, quiet, longest = now, false, nil
if SERVER then
--include guard.lua
end
