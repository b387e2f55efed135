-- A condition: none of the queues of the argument has a cap. So a cap that an operator sets applies
-- to the next claim, whatever the worker knows.
NOT EXISTS (SELECT FROM {queues} WHERE {argument} AND max_running IS NOT NULL)
