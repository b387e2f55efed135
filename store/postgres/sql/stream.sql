SELECT {columns}
  FROM {events} AS e
 WHERE e.aggregate_type = $1::text AND e.aggregate_id = $2::text
   AND e.aggregate_version BETWEEN $3::bigint AND $4::bigint
 ORDER BY e.aggregate_version
