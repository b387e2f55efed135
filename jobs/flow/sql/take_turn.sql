-- Takes the turn to sweep, for $1 microseconds. A turn that is longer than longestPause ahead was
-- taken before the server's clock was set back. Without this rule no worker would sweep until then.
INSERT INTO {turn} AS t ("only", next_at) VALUES (true, statement_timestamp() + $1::bigint * interval '1 microsecond')
ON CONFLICT ("only") DO UPDATE SET next_at = excluded.next_at WHERE t.next_at <= statement_timestamp() OR t.next_at > statement_timestamp() + interval '1 minute'
RETURNING true
