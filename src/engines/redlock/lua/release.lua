--include head.lua
--include give.lua
-- Give a vote back. Without attempt: the client of handle `giver` was told that this vote is kept for it, and has no use for it.
if given == '' then
    if heir == number_of(giver) then
        notify_first()
        save()
    end
    return LOST
end
local verdict, gave = give_back()
if gave then
    if how > 0 then
        notify_first()
    end
    save()
end
return verdict
