-- The condition that a row may be claimed. The first part is the condition of the index. The rest
-- is a CASE, for the planner. Without statistics, the planner estimates a CASE as true for every
-- other row. So the planner reads the index in its order instead of sorting a number of rows that
-- it expects to be small.
{alias}.{state} = 'queued'
		AND CASE WHEN {alias}.{cancel} THEN true ELSE {alias}.{process_after} IS NULL OR {alias}.{process_after} <= statement_timestamp() END
