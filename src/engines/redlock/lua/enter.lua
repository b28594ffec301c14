--include head.lua
--include vote.lua
-- Ask for this node's vote. The fence, or {why not, last fence, for how long, the other's fence}.
return vote()
