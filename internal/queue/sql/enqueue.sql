-- A row that a trigger drops has the id -1.
{enqueue_given}, {enqueue_new true}
UNION ALL SELECT g.n, -1 FROM given AS g WHERE unique_key IS NULL AND NOT EXISTS (SELECT FROM new WHERE new.id = g.id)
