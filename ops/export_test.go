package ops

// ListSQL is the statement of a list, for those who look at its plan.
func (o *Jobs) ListSQL(f Filter, limit int) (query string, args []any) { return o.listSQL(f, limit) }

// QueuesSQL is that of Queues.
func (o *Jobs) QueuesSQL() string { return o.queuesSQL() }
