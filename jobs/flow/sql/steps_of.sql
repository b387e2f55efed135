-- Reads the steps of a run, as in its shape.
SELECT {step_columns} FROM {steps} AS s {of_step} WHERE {of_run} AND s.id & 1048575 = 0 ORDER BY s.id
