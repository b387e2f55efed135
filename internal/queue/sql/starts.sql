-- True for the rows that start now. PostgreSQL searches the array from its beginning for each row,
-- so the search is skipped if all start.
($7::bigint >= $6::bigint OR j.ctid = ANY (ARRAY(SELECT at FROM picked WHERE n <= $7::bigint)))
