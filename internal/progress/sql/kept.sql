-- True if no trigger has dropped a row of the audit or of the receipts.
(SELECT count(*) FROM gone) = jsonb_array_length($17::jsonb) AND (SELECT count(*) FROM audit) = jsonb_array_length($16::jsonb)
	AND (SELECT count(*) FROM receipts) = jsonb_array_length($19::jsonb)
