SELECT state, cancel_at IS NOT NULL FROM {runs} WHERE id = $1::bigint FOR NO KEY UPDATE
