-- True if the last heartbeat of worker o is not older than its HeartbeatTimeout, by default 30
-- seconds.
o.heartbeat_at > clock_timestamp() - {timeout}
