-- The versions of a projection that have its effects, except $1. argument is the scope of $1.
SELECT FROM {checkpoints} AS v WHERE v.scope->>'projection' = {argument}->>'projection' AND split_part(v.consumer_name, '#', 1) <> split_part($1::text, '#', 1)
AND v.split_at IS NULL AND v.last_position < 9223372036854775807 AND NOT v.effects @> '[{"after": 9223372036854775807}]'
