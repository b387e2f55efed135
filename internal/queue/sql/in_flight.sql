SELECT {columns} FROM {jobs} AS j WHERE j.state = 'running' AND j.queue = $2::text AND j.claimed_by = $1::uuid AND {primary}
