-- A condition: role r may write the heartbeats in the table ${argument}.
coalesce(has_column_privilege(r.oid, to_regclass(${argument}::text)::oid, 'heartbeat_at', 'UPDATE'), false)
