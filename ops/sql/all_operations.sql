SELECT {operation_columns} FROM {operations} AS o WHERE o.id < $1::bigint ORDER BY o.id DESC LIMIT $2::bigint
