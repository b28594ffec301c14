--include head.lua
-- Renew a vote. ARGV[1]: fence, lease; owner, attempt. {verdict, rest of the lease}
local theirs, lease, who, try = struct.unpack('>ddss', ARGV[1])
if not live or attempt ~= try then
    if live and owner == who and attempt ~= '' then
        return {RESUMED, 0}
    end
    return {theirs > 0 and broken > theirs and BROKEN or LOST, 0}
elseif theirs < broken and theirs > 0 then
    return {BROKEN, ends - now}
end
ends = now + lease
save()
return {GRANTED, lease}
