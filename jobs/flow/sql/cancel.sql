UPDATE {runs} SET cancel_at = clock_timestamp() WHERE id = $1::bigint
