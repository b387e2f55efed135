SELECT {found}, NULL::timestamptz, '', '', NULL::jsonb FROM {jobs} WHERE id = $1::bigint
UNION ALL
SELECT {found}, {time finished_at}, coalesce(code, ''), coalesce(error, ''), result FROM {history} WHERE id = $1::bigint
