--include head.lua
-- Look at this node's record: {} for none, else its time and all of it. A vote that is over, or whose
-- record is gone, leaves the set of busy locks.
if stored and not live and ends > 0 then
    ends = 0
    save()
elseif not live then
    call('SREM', BUSY_SET, key)
end
if not stored then
    return {}
end
return {now, last, broken, broken_at, live and fence or 0, ends, since, round, owner, attempt, info, by}
