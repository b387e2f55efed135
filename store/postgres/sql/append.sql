-- Draws positions for rows that come from head, so while it holds the head's lock. Therefore
-- positions and versions of an aggregate have the same order. PostgreSQL computes the default of a
-- column after the ORDER BY of the SELECT that feeds the INSERT. All payloads are one parameter,
-- which the statement cuts apart. They need no escaping, and half the bytes of an array's text.
WITH head AS (
    {head}
    RETURNING h.aggregate_version - $3::bigint AS version{notify}
)
INSERT INTO {events} (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, event_version,
       payload, trace_id, correlation_id, causation_id, metadata, created_at)
SELECT $1::text, $2::text, head.version + e.n, e.event_id, e.event_type, e.event_version,
       substring($4::bytea FROM e.start FOR e.length), substr(nullif(e.trace_id, ''), 2), substr(nullif(e.correlation_id, ''), 2), substr(nullif(e.causation_id, ''), 2),
       nullif(e.metadata, '')::jsonb, COALESCE(nullif(e.created_at, '')::timestamptz, clock_timestamp())
  FROM head CROSS JOIN unnest($5::int[], $6::int[], $7::uuid[], $8::text[], $9::int[],
       $10::text[], $11::text[], $12::text[], $13::text[], $14::text[]) WITH ORDINALITY
    AS e (start, length, event_id, event_type, event_version,
       trace_id, correlation_id, causation_id, metadata, created_at, n)
 ORDER BY e.n
RETURNING global_position, aggregate_version, metadata, created_at
