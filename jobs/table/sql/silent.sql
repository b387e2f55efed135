-- The condition that a heartbeat is older than the argument or lies in the future. The age of a
-- heartbeat in the future is unknown, so the watch checks whether another heartbeat comes.
NOT coalesce({heartbeat}, '-infinity') BETWEEN clock_timestamp() - {argument} AND clock_timestamp()
