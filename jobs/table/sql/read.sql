SELECT {view_alias}.{id}, {expressions}
FROM {view} AS {view_alias} WHERE {view_alias}.{id} = ANY ($1::text::bigint[])
