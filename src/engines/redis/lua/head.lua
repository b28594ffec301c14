-- What every command begins with: the time, and the lock's record.
--
-- The record is one string at KEYS[1]: capacity, used, number of holders and of waiters, last
-- fence, last place, broken fence, broken at, till when it is kept, broken by; and behind that the
-- entry of the one holder that takes the whole lock, if there is one. So a plain lock is one key,
-- and a command on it one GET and one SET. Holders that take a part are in key:h (field -> entry),
-- key:x (by end of lease) and key:f (by fence); waiters in key:q (owner -> entry) and key:l (by
-- place).
--
-- An entry: number, since, ends, extra, min_hold; then who: owner, attempt, info, wake, weight,
-- lease. `number` is the fence of a holder and the place of a waiter; `ends` is when its lease
-- ends or when it counts as dead; `extra` is 1 for a holder that was given back early, and a
-- waiter's window. The caller sends `who` as it is stored, and "owner\0attempt\0", its beginning,
-- where it is asked for by name.
--
-- Replies: {verdict, fence, floor, remaining, capacity}, zeros at the end left out; for the two
-- most common ones a single number, which costs least: a fence is granted with its whole lease and
-- nobody beside it, and 0 is released. Nothing stays for ever: a day and a lease after its last
-- use a lock is gone. By then the clock is far past its last fence, so that fences keep growing.
--define RECORD '>c4I4I4I4I4dddddsddddd' ENTRY '>dddddssssI4d' WHO '>ssssI4d'
--define DAY 86400000000 HOUR 3600000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key = KEYS[1]
local stored = redis.call('GET', key)
local mark, capacity, used, holders, waiters = 'dib1', 0, 0, 0, 0
local last_fence, last_place, broken_fence, broken_at, till, broken_by = 0, 0, 0, 0, 0, ''
local h_number, h_since, h_ends, h_extra, h_min_hold, at = 0, 0, 0, 0, 0, 1
if stored then
    if string.sub(stored, 1, 4) ~= mark then
        return redis.error_reply('NOTOURS the key holds something that is no lock')
    end
    mark, capacity, used, holders, waiters, last_fence, last_place, broken_fence, broken_at, till,
        broken_by, h_number, h_since, h_ends, h_extra, h_min_hold, at
        = struct.unpack(RECORD, stored)
end
