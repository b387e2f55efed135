-- Reads two columns.
SELECT a,
	b
FROM t
WHERE a = $1
