-- A vote. ARGV[1]: what the client proposes as fence, lease, min_hold, round, the longest lease that
-- any client may ask for, and when the client last dialled, counted; owner, attempt, "pid host".
-- ARGV[2] and [3]: the keys of the node's marker and of the client's own mark.
--
-- A client that has dialled anew leaves a mark here: what its old connection still brings is refused.
-- So its questions take effect in the order in which they were sent, or not at all.
--
-- The marker says since when this node's memory reaches back without a gap (`born`, 0: for ever),
-- and the longest lease. Votes given out before that may be forgotten here and still count
-- elsewhere: until the last of them is over, the node does not vote.
local proposal, lease, hold, number, longest, dialled, who, try, more =
    struct.unpack('>ddddddsss', ARGV[1])

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

local function vote()
    local silence = quiet()
    if silence then
        return silence
    elseif gone and dialled < tonumber(gone) then
        return {BUSY, last, 0, 0}
    elseif live and (attempt == '' or owner ~= who or attempt == try and round > number) then
        return {BUSY, last, ends - now, fence}
    end
    last = proposal > last and proposal or last + 1
    fence, ends, since, min_hold, round = last, now + lease, now, hold, number
    owner, attempt, info = who, try, more
    save()
    return fence
end
