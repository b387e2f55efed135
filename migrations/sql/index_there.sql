-- True if the table with the oid {argument} has the index x, or one like it. A unique index must be
-- one that ON CONFLICT finds. Its columns may have another order. PostgreSQL adds parentheses,
-- casts and, with quote_all_identifiers, quotes to a predicate. Of another index with a predicate,
-- only the name counts.
CASE WHEN x."unique" THEN EXISTS (
    SELECT FROM pg_index AS i
    WHERE i.indrelid = {argument} AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indexprs IS NULL
    AND coalesce(regexp_replace(pg_get_expr(i.indpred, i.indrelid), '[()"]|::"?text"?', '', 'g'), '') = replace(x.predicate, '"', '')
    AND x.columns = ARRAY(
        SELECT a.attname::text FROM pg_attribute AS a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY a.attname::text COLLATE "C")
) ELSE EXISTS (SELECT FROM pg_class AS c WHERE c.oid = to_regclass(x.relation) AND c.relkind IN ('i', 'I')) OR x.predicate = '' AND EXISTS (
    SELECT FROM pg_index AS i WHERE i.indrelid = {argument} AND i.indisvalid
    AND split_part(pg_get_indexdef(i.indexrelid), ' USING ', 2) = 'btree (' || x."on" || ')'
) END
