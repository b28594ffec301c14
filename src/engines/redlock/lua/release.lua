--include head.lua
--include give.lua
-- Give a vote back.
local verdict = give_back()
if verdict == RELEASED then
    save()
    if not live then
        call('PUBLISH', key .. ':free', '')
    end
end
return verdict
