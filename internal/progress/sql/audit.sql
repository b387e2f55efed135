-- Writes the audit and the receipts of a batch.
, gone AS (
	DELETE FROM {gap_skips}
	WHERE id IN (SELECT jsonb_array_elements_text($17::jsonb)::bigint) AND EXISTS (SELECT FROM guard)
	RETURNING 1
), audit AS ({marks_of_guard}
	RETURNING 1
), receipts AS ({receipts_of_guard}
	RETURNING 1
)
