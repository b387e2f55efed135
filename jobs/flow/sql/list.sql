-- Lists runs with IDs below $1. The other conditions of a filter are appended, so that the planner
-- can choose the index.
SELECT {run_columns} FROM {runs} AS r WHERE r.id < $1::bigint
