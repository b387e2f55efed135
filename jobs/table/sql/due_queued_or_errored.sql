-- The condition due_queued, or that an errored row is due again.
--
-- A finished_at in the future was written before the server's clock was set back. The limit of a
-- minute is longer than a statement's clock may lag.
{alias}.{state} IN ('queued', 'errored')
		AND CASE WHEN {alias}.{cancel} THEN true
			WHEN {alias}.{state} = 'queued' THEN {alias}.{process_after} IS NULL OR {alias}.{process_after} <= statement_timestamp()
			ELSE {alias}.{finished_at} IS NULL OR {alias}.{finished_at} <= statement_timestamp() - {retry_after}
				OR {alias}.{finished_at} > statement_timestamp() + {minute} END
