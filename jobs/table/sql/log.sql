UPDATE {table} AS t SET {execution_logs} = coalesce(t.{execution_logs}, '{}') || ARRAY[$4::text::{log_type}]
WHERE {fence_one}
RETURNING cardinality(t.{execution_logs})
