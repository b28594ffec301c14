--include head.lua
--include vote.lua
--include give.lua
-- Give one vote back and ask for the next, in one step: {verdict of the first, what entering says}.
local verdict, gave = give_back()
local answer = vote()
if type(answer) == 'table' and gave then
    if not live then
        tell_free(given)
    end
    save()
end
return {verdict, answer}
