-- Reads the lanes of a claim, and the position from which it reads in each.
SELECT p, coalesce(greatest(at, statement_timestamp() - ago * interval '1 microsecond'), '-infinity') AS at, id
FROM jsonb_to_recordset({argument}::jsonb) AS l(p smallint, at timestamptz, id bigint, ago bigint)
