SELECT count(*) FROM {table} AS {alias} WHERE {alias}.{state} = ANY ($1::text::{state_type}[]){condition}
