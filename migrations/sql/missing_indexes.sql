-- Returns the missing indexes of the shapes $1 that are not unique.
{shapes}
SELECT x.relation FROM indexed AS x WHERE NOT x."unique" AND NOT {index_there x.oid}
