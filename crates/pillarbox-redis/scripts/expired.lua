-- Part: updates the deliveries of a message, as header.lua describes them and without a secret, when the lease
-- of the last one has expired: adds 1 to the unsettled if it was started, and to the uncounted if not.
-- Uses locals: sub, tonumber. Changes the local deliveries.
do
  local number, uncounted, started = string.match(deliveries, '^(%d+):?(%d*)(s?)$')
  local before = number and (uncounted == '' and number or number .. ':' .. uncounted) or '0'
  local after = before
  if started == 's' then
    -- Numbers are exact up to 2^53.
    number = tonumber(number)
    if number < 9007194959773696 then number = number + 4294967296 end
    after = string.format('%.0f', number) .. sub(before, string.find(before, ':', 1, true) or #before + 1)
  elseif number then
    after = number .. ':' .. string.format('%.0f', (tonumber(uncounted) or 0) + 1)
  end
  -- The colon must be among the first 16 characters, which distinguishes this from a secret.
  local colon = string.find(after, ':', 1, true) or #after
  deliveries = colon <= 16 and after or before
end
