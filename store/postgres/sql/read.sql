SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position > $1::bigint AND {proof_3}
 ORDER BY e.global_position
 LIMIT $2::bigint
