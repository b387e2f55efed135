-- Does an index lookup for each range. The ranges are few and far apart, and there may be millions
-- of events between them.
SELECT {columns}
  FROM jsonb_to_recordset($1::jsonb) AS r (first bigint, last bigint)
 CROSS JOIN LATERAL (
       SELECT * FROM {events}
        WHERE global_position BETWEEN r.first AND r.last
        ORDER BY global_position LIMIT $2::bigint) AS e
 WHERE {proof_3}
 ORDER BY global_position LIMIT $2::bigint
