-- Selects the steps s of the run $1.
s.id >= $1::bigint << 30 AND s.id < ($1::bigint + 1) << 30
