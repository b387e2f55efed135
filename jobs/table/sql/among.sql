-- True for the rows of the list $1.
{alias}.{id} = ANY ($1::text::bigint[])
