-- An expression for when a row last showed that its worker lives. The value is NULL without such a
-- time, or if the time is infinite. The value may lie in the future, if the server's clock was set
-- back.
CASE WHEN isfinite(coalesce(t.{last_heartbeat_at}, t.{started_at})) THEN coalesce(t.{last_heartbeat_at}, t.{started_at}) END
