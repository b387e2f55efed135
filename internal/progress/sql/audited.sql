-- The further columns of a checkpoint that a batch with an audit writes.
, effects = coalesce($18::jsonb, effects)
