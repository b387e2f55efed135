package ops

// ListSQL is the statement of a list, for those who look at its plan.
func (o *Jobs) ListSQL(f Filter, limit int) (query string, args []any) { return o.listSQL(f, limit) }

// OperationsSQL is that of Operations.
func (o *Jobs) OperationsSQL(f OperationsFilter, limit int) (query string, args []any) {
	return o.operationsSQL(f, limit)
}

// WorkersSQL is that of Workers.
func (o *Jobs) WorkersSQL() string { return o.workersSQL() }

// QueuesSQL is that of Queues.
func (o *Jobs) QueuesSQL() string { return o.queuesSQL() }

// ReadsSQL are the statements of what an Operator reads, by name, with the values of
// their parameters as EXECUTE takes them, for those who look at their plans.
func (o *Operator) ReadsSQL() map[string][2]string {
	filter := LetterFilter{EventType: "none"}
	letters, _ := o.lettersSQL("c", filter, true, 10)
	all, _ := o.lettersSQL("c", LetterFilter{}, true, 10)
	matching, _ := o.matchingSQL("c", LetterFilter{}, 10)
	operations, _ := o.operationsSQL("", 1, 1)
	operationsOf, _ := o.operationsSQL("c", 1, 1)
	return map[string][2]string{
		"operations":          {operations, `(9223372036854775807, 10)`},
		"operations of one":   {operationsOf, `(9223372036854775807, 10, 'c')`},
		"log":                 {o.logSQL(), ``},
		"workers":             {o.workersSQL(), ``},
		"consumers":           {o.consumersSQL(), ``},
		"gaps":                {o.gapsSQL(false), `('c', 9223372036854775807, 10)`},
		"gaps, a later page":  {o.gapsSQL(false), `('c', 9000, 10)`},
		"open gaps":           {o.gapsSQL(true), `('c', 9223372036854775807, 10)`},
		"next":                {o.nextSQL(), `('c')`},
		"letters":             {all, `('c', 10)`},
		"letters of a filter": {letters, `('c', 10, 'Happened')`},
		"matching letters":    {matching, `('c', 10)`},
	}
}

// RetryManySQL is the statement of RetryWhere.
func (o *Operator) RetryManySQL() string { return o.retryManySQL() }

// DiscardManySQL is that of DiscardWhere.
func (o *Operator) DiscardManySQL() string { return o.discardManySQL() }
