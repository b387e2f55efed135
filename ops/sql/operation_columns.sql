o.id, o.consumer_name, o.operation, coalesce(o.detail, '{}')::text, o.operator, o.reason, {time o.created_at}
