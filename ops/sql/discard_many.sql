-- Unnests the list once. In a condition of the rows, PostgreSQL would unnest the list for each row.
DELETE FROM {dead_letters} WHERE consumer_name = $1::text AND global_position = ANY (ARRAY(SELECT unnest($2::text::bigint[])))
