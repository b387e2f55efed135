-- True if no trigger has dropped a row of the audit.
(SELECT count(*) FROM gone) = jsonb_array_length($11::jsonb) AND (SELECT count(*) FROM audit) = jsonb_array_length($10::jsonb)
