SELECT id FROM {runs} WHERE flow = $1::text AND key = $2::text AND state = 'running'
