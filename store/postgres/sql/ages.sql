-- Does one index lookup for each place, or for each of its types. Positions without an
-- event cost nothing. An event without a finite time of creation has age 0. Ages are at most 100
-- years.
SELECT COALESCE(e.global_position, 0),
       CASE WHEN isfinite(e.created_at) THEN least(greatest(extract(epoch FROM statement_timestamp() - e.created_at), 0), 3155760000) * 1000000 ELSE 0 END::bigint
  FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY AS p (place, n)
  LEFT JOIN LATERAL (
       (SELECT e.global_position, e.created_at
          FROM {events} AS e
         WHERE jsonb_typeof(p.place->'types') = 'null' AND e.global_position > (p.place->>'after')::bigint
         ORDER BY e.global_position LIMIT 1)
       UNION ALL
       (SELECT first.global_position, first.created_at
          FROM jsonb_array_elements_text(CASE jsonb_typeof(p.place->'types') WHEN 'array' THEN p.place->'types' END) AS t (name)
         CROSS JOIN LATERAL (
               SELECT e.global_position, e.created_at
                 FROM {events} AS e
                WHERE e.aggregate_type = ANY (ARRAY[t.name]) AND e.global_position > (p.place->>'after')::bigint
                ORDER BY e.aggregate_type, e.global_position LIMIT 1) AS first
         ORDER BY first.global_position LIMIT 1)) AS e ON true
 WHERE {proof_2}
 ORDER BY p.n
