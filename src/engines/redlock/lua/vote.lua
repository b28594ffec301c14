-- A vote. ARGV[1]: what the client proposes as fence, lease, min_hold, round, the longest lease that
-- any client may ask for, how often the client had dialled when it asked, 1 if it will wait, and its arrival (0: it
-- has none yet); owner, attempt, "pid host".
-- ARGV[2] and [3]: the keys of the node's marker and of the client's own mark, which ends with its handle.
--define WAITING 3000000 HINTS_MOST 1000
--
-- A client that has dialled anew leaves a mark here: what its old connection still brings is refused.
-- So its questions take effect in the order in which they were sent, or not at all.
--
-- The marker says since when this node's memory reaches back without a gap (`born`, 0: for ever),
-- and the longest lease. Votes given out before that may be forgotten here and still count
-- elsewhere: until the last of them is over, the node does not vote.
local proposal, lease, hold, number, longest, dialled, waits, arrival, who, try, more =
    struct.unpack('>ddddddddsss', ARGV[1])

local marker, gone = unpack(call('MGET', ARGV[2], ARGV[3]))

local function quiet()
    if not marker then
        return {UNMARKED, last}
    end
    local born, stored_longest, always, run = struct.unpack('>ddds', marker)
    if longest > stored_longest then
        call('SET', ARGV[2], struct.pack('>ddds', born, longest, always, run))
        stored_longest = longest
    end
    local till = born == 0 and 0 or born + stored_longest * 1.01
    return till > now and {QUIET, last, till - now} or nil
end

local function me()
    return string.match(ARGV[3], '[^:]*$')
end

-- For how long the vote is kept for another, who has been told. One who would not wait need not give way.
local function reserved()
    return not live and waits == 1 and kept > now and heir ~= number_of(me()) and kept - now
end

-- Whoever waits leaves a hint, with its arrival: the fence of the vote that was in the way when it began to wait. So arrivals need no
-- clock and are nearly the same on all nodes; their handles put those in order that came during the same hold. The rank of the
-- hint is answered: those further back look again later.
local function busy(left)
    local rank = 0
    if waits == 1 then
        arrival = arrival > 0 and arrival or live and fence or last + 1
        call('ZADD', HINTS, string.format('%.0f', arrival), me())
        call('ZREMRANGEBYRANK', HINTS, HINTS_MOST, -1)
        call('PEXPIRE', HINTS, WAITING / 1000)
        rank = call('ZRANK', HINTS, me()) or HINTS_MOST
        if wanted < now + WAITING / 2 then
            wanted = now + WAITING
            save()
        end
    end
    return {BUSY, last, left, live and fence or 0, arrival, rank, live and number_of(attempt) or heir}
end

-- A vote that is out is replaced by the same attempt, and by a newer one of the same handle: its caller
-- gave the older one up. An older one that comes late, and another handle of the same owner, are turned
-- away like everybody. Attempts are written HANDLE-NUMBER, see src/state/attempt.h.
local function replaces()
    local handle, count = string.match(try, '^(.*)-(%x*)$')
    local old_handle, old_count = string.match(attempt, '^(.*)-(%x*)$')
    return attempt == try and round <= number
        or handle and handle == old_handle and tonumber(count, 16) > tonumber(old_count, 16)
end

local function vote()
    local silence, moment = quiet(), reserved()
    if silence then
        return silence
    elseif moment then
        return busy(moment)
    elseif gone and dialled < tonumber(gone) then
        return {STALE, last}
    elseif live and (attempt == '' or owner ~= who or not replaces()) then
        return busy(ends - now)
    end
    if wanted > now then
        call('ZREM', HINTS, me())
    end
    if not stored then
--include ../../redis/lua/sweep.lua
    end
    last = proposal > last and proposal or last + 1
    fence, ends, since, min_hold, round = last, now + lease, now, hold, number
    heir, kept = 0, 0
    owner, attempt, info = who, try, more
    save()
    return fence
end
