-- Reads the types in the array $3, see scoped_one. Before it reads any event, it finds the first $4
-- positions of each type, and the first $4 of these. It reads each event by an index lookup, since
-- the planner expects few elements in an unknown array.
WITH page AS MATERIALIZED (
    SELECT p.global_position
      FROM unnest($3::text[]) AS t (name)
     CROSS JOIN LATERAL (
           SELECT e.global_position
             FROM {events} AS e
            WHERE e.aggregate_type = ANY (ARRAY[t.name]) AND e.global_position > (SELECT $1::bigint)
            ORDER BY e.aggregate_type, e.global_position
            LIMIT (SELECT $4::bigint)) AS p
     WHERE p.global_position <= $2::bigint
     ORDER BY p.global_position
     LIMIT $4::bigint
)
SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position = ANY (ARRAY(SELECT p.global_position FROM page AS p)) AND {proof_5}
 ORDER BY e.global_position
