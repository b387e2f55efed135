-- The first_seen_at of an open range, as the JSON of a time.Time. The time is in UTC: in a session's
-- zone, the offset of an old time may have seconds.
to_jsonb({time first_seen_at} AT TIME ZONE 'UTC') #>> '{}' || 'Z'
