-- Selects the consumer or unit $1, and the current units of the consumer.
SELECT $1::text AS name UNION SELECT consumer_name FROM {checkpoints} WHERE {units_of}
