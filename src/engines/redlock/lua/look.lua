--include head.lua
-- Look at this node's record: {} for none, else its time and all of it.
if not stored then
    return {}
end
return {now, last, broken, broken_at, live and fence or 0, ends, since, round, owner, attempt, info, by}
