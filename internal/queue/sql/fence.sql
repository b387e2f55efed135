-- The condition that a job runs under a claim of the list d. It names neither state nor worker,
-- since the table ties both to the claim. With them, the planner would choose the index of running
-- jobs, which it believes to be small. A scan of that index would visit all its dead entries. The
-- ids are an array, since the planner expects a hundred rows of a join with the list. It would
-- choose a sequential scan while there are few jobs, and keep that plan when there are many.
j.id = ANY (ARRAY(SELECT id FROM d)) AND (j.id, j.claim) IN (SELECT id, claim FROM d)
