--include head.lua
-- Write the fence of a grant back to a node that voted for it. ARGV[1]: fence, round; attempt. 1: it
-- counts here. 0: that vote is over, and the fence must not be taken for kept.
local proposed, number, try = struct.unpack('>dds', ARGV[1])
if not live or attempt ~= try or round ~= number then
    return 0
end
fence = proposed
last = last > fence and last or fence
save()
return 1
