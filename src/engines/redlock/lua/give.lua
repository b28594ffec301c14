-- The vote of (owner, attempt) in a round up to this one goes back. The last ARGV: fence, round, how (0: a vote that was not
-- enough, whose client tries again or has been told who has the lock; 1: a waiter is told; 2: as well, and min_hold counts); owner,
-- attempt. A vote that came after its lock was broken goes back too, but was none.
local theirs, up_to, how, giver, given = struct.unpack('>dddss', ARGV[#ARGV])

local was_broken = theirs > 0 and broken > theirs

local function missing()
    if live and owner == giver and attempt ~= given and attempt ~= '' then
        return RESUMED
    end
    return was_broken and BROKEN or LOST
end

-- The verdict, and whether it was here.
local function give_back()
    if not live or attempt ~= given or round > up_to then
        return missing(), false
    end
    local till = since + min_hold
    if how == 2 and min_hold > 0 and till > now then
        owner, attempt, ends = '', '', till
    else
        owner, attempt, ends, live = '', '', 0, false
    end
    return was_broken and BROKEN or RELEASED, true
end
