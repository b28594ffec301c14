--include head.lua
--include give.lua
-- Give a vote back.
local verdict = give_back()
if verdict == RELEASED then
    if not live then
        tell_free(given)
    end
    save()
end
return verdict
