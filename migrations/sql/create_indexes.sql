DECLARE missing text; BEGIN FOR missing IN SELECT x."create" FROM (VALUES
    {indexes}
) AS x("create", "table", relation, "on", columns, predicate, "unique") WHERE NOT {index_there to_regclass(x."table")}
LOOP EXECUTE missing; END LOOP; END;
