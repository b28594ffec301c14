--include head.lua
--include give.lua
-- Give a vote back.
local verdict, gave = give_back()
if gave then
    if not live then
        tell_free(given)
    end
    save()
end
return verdict
