-- Returns the rows that a claim would find, and claims nothing. It has the parameters of a claim.
WITH {picked NOT {among}}
SELECT id FROM picked WHERE $2::text IS NOT NULL
