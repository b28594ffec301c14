-- A vote. ARGV[1]: what the client proposes as fence, lease, min_hold, round, the longest lease that
-- any client may ask for, how often the client had dialled when it asked, and 0 if it will not wait, 1 if it
-- will, 2 if it has; owner, attempt, "pid host".
-- ARGV[2] and [3]: the keys of the node's marker and of the client's own mark.
--define MOMENT 10000 WAITING 2000000
--
-- A client that has dialled anew leaves a mark here: what its old connection still brings is refused.
-- So its questions take effect in the order in which they were sent, or not at all.
--
-- The marker says since when this node's memory reaches back without a gap (`born`, 0: for ever),
-- and the longest lease. Votes given out before that may be forgotten here and still count
-- elsewhere: until the last of them is over, the node does not vote.
local proposal, lease, hold, number, longest, dialled, waits, who, try, more =
    struct.unpack('>dddddddsss', ARGV[1])

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

-- Whoever waits is told when the lock is free, and for a moment nobody else who would wait gets it:
-- else the one who gave it back would have it again before any of them is awake.
local function reserved()
    local since_then = now - (ends > freed and ends or freed)
    return not live and waits == 1 and wanted > now and since_then < MOMENT and MOMENT - since_then
end

local function busy(left)
    if waits > 0 and wanted < now + WAITING / 2 then
        wanted = now + WAITING
        save()
    end
    return {BUSY, last, left, live and fence or 0}
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
    if not stored then
--include ../../redis/lua/sweep.lua
    end
    last = proposal > last and proposal or last + 1
    fence, ends, since, min_hold, round = last, now + lease, now, hold, number
    owner, attempt, info = who, try, more
    save()
    return fence
end
