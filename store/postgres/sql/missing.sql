-- Answers from one snapshot, in two steps:
--
--   - tally counts the positions without an event. It reads the primary key once. Its cost
--     grows with the events in the range, not with the width of the gaps.
--   - gap finds the first and the last of these positions. Up to the first gap, the n-th event
--     is at $1 + n, and likewise downwards from the last gap. If no position is missing, gap is
--     not executed.
WITH tally AS MATERIALIZED (
    SELECT $2::bigint - $1::bigint - (
           SELECT count(*) FROM {events} AS e
            WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS missing
), gap AS MATERIALIZED (
    SELECT (SELECT $1::bigint + e.n
              FROM (SELECT e.global_position, row_number() OVER (ORDER BY e.global_position) AS n
                      FROM {events} AS e
                     WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS e
             WHERE (SELECT missing FROM tally) > 0 AND e.global_position <> $1::bigint + e.n
             ORDER BY e.global_position
             LIMIT 1) AS first,
           (SELECT $2::bigint + 1 - e.n
              FROM (SELECT e.global_position, row_number() OVER (ORDER BY e.global_position DESC) AS n
                      FROM {events} AS e
                     WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS e
             WHERE (SELECT missing FROM tally) > 0 AND e.global_position <> $2::bigint + 1 - e.n
             ORDER BY e.global_position DESC
             LIMIT 1) AS last
)
SELECT t.missing, COALESCE(g.first, $2::bigint - t.missing + 1), COALESCE(g.last, $1::bigint + t.missing)
  FROM tally AS t CROSS JOIN gap AS g
 WHERE {proof_3}
