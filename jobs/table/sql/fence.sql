-- The condition that the row still has the claim of an entry of the list d. The IDs come as an
-- array too, since a join with the list alone may become a sequential scan.
t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $3::text
