-- Reads one type, $3. This statement and the statement scoped make the planner use the index
-- (aggregate_type, global_position) and end early, whatever its statistics say:
--
--   - With "= ANY" instead of "=", only this index returns the rows in the required order.
--   - The planner does not know the value of a SELECT, and $2 is not a condition of the scan. So
--     the planner expects many rows, of which a tenth is used. It therefore does not collect and
--     sort all rows.
SELECT {columns}
  FROM (SELECT * FROM {events} AS e
         WHERE e.aggregate_type = ANY (ARRAY(SELECT $3::text)) AND e.global_position > (SELECT $1::bigint)
         ORDER BY e.aggregate_type, e.global_position
         LIMIT (SELECT $4::bigint)) AS e
 WHERE e.global_position <= $2::bigint AND {proof_5}
 ORDER BY e.aggregate_type, e.global_position
