SELECT worker_id::text, coalesce(hostname, '') || '/' || coalesce(pid, 0), coalesce(partitions->($1::text)->>'key', ''), partitions->($1::text)->>'scope'
FROM {nodes} WHERE worker_id <> $2::uuid AND NOT draining AND partitions->($1::text)->>'scope' IS NOT NULL
