-- Is the SET list of every end of a run after which the job is to run again.
state = 'available', claim = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL
