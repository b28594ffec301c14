-- The vote of (owner, attempt) in a round up to this one goes back. The last ARGV: fence, round, 1 if
-- min_hold counts; owner, attempt. Whoever listens is told that the lock is free.
local theirs, up_to, holds, giver, given = struct.unpack('>dddss', ARGV[#ARGV])

local function missing()
    if live and owner == giver and attempt ~= given and attempt ~= '' then
        return RESUMED
    end
    return theirs > 0 and broken > theirs and BROKEN or LOST
end

local function give_back()
    if not live or attempt ~= given or round > up_to then
        return missing()
    end
    local till = since + min_hold
    if holds == 1 and min_hold > 0 and till > now then
        owner, attempt, ends = '', '', till
    else
        owner, attempt, ends, freed, live = '', '', 0, now, false
    end
    return RELEASED
end
