--include head.lua
--include vote.lua
--include give.lua
-- Give one vote back and ask for the next, in one step: {verdict of the first, what entering says}.
local verdict = give_back()
local answer = vote()
if type(answer) == 'table' and verdict == RELEASED then
    save()
    if not live then
        call('PUBLISH', key .. ':free', '')
    end
end
return {verdict, answer}
