-- Reads many types in few positions: it scans all events above $1 up to $2. IS TRUE makes the
-- planner hash the types instead of a join. (Otherwise PostgreSQL would compare each event with
-- each element of the array.)
SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint
   AND (e.aggregate_type IN (SELECT t.name FROM unnest($3::text[]) AS t (name))) IS TRUE AND {proof_5}
 ORDER BY e.global_position
 LIMIT $4::bigint
