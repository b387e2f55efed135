-- Returns how long the row has been due that has been due for longest.
SELECT coalesce(max({age d.due}), 0) FROM (
	SELECT greatest({alias}.{queued_at}, {alias}.{process_after}) AS due FROM {table} AS {alias} WHERE {alias}.{state} = 'queued'{condition}
	UNION ALL
	SELECT coalesce({time {alias}.{finished_at}} + {retry_after}, {alias}.{queued_at}) FROM {table} AS {alias} WHERE {alias}.{state} = 'errored' AND {retries}{condition}
) AS d WHERE isfinite(d.due) AND d.due <= statement_timestamp()
