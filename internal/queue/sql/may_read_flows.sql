-- Selects whether this role may read the columns of the statement unadvanced.
SELECT coalesce(has_column_privilege(to_regclass($1::text), 'finished_at', 'SELECT') AND has_column_privilege(to_regclass($2::text), 'next_at', 'SELECT'), false)
