-- A search that decides something returns the incarnation, also if it finds no row.
SELECT coalesce({incarnation}, ''), found.a, found.b, found.c FROM (SELECT 1) AS one LEFT JOIN ({search}) AS found ON true
ORDER BY found.a
