--include head.lua
--include vote.lua
--include give.lua
-- Give one vote back and ask for the next of the same handle, in one step: {verdict of the first, what entering says}.
local verdict, gave = give_back()
local answer = vote()
if type(answer) == 'table' and gave then
    notify_first()
    save()
end
return {verdict, answer}
