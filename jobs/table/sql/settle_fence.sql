t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $2::text
