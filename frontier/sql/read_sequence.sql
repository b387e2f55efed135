SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), coalesce(pg_relation_filenode(c.oid), 0)::bigint,
	has_sequence_privilege(c.oid, 'SELECT'), s.seqcache, s.seqincrement, s.seqcycle, s.seqmin
FROM pg_sequence AS s
JOIN pg_class AS c ON c.oid = s.seqrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE s.seqrelid = $1::bigint::oid
