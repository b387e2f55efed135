package mutants

import "slices"

// All returns every mutant.
func All() []Mutant {
	return slices.Concat(frontierMutants, narrowingMutants, cacheMutants, readerMutants, serverMutants, guardMutants, openRangeMutants, handledMutants, receiptMutants, contractMutants, failureMutants, coordMutants, jobMutants, tableMutants, partitionMutants, effectsMutants)
}

// guardMutants are about the first statement of a batch.
var guardMutants = []Mutant{
	{
		Name:    "no-revision",
		Mistake: "the guard compares the position only: it need not be the version of the row that was loaded",
		Edits: []Edit{
			{"internal/progress/sql/guard.sql", `WHERE ctid = $7::text::tid`, `WHERE $7::text <> ''`},
			{"internal/progress/sql/guard.sql", `revision = $2::bigint AND last_position <= $3::bigint AND last_position = $8::bigint`, `$2::bigint >= 0 AND last_position <= $3::bigint AND $8::bigint >= 0`},
		},
		Faults: calm + ",move=10",
	},
	{
		Name:    "no-token",
		Mistake: "the guard does not ask which incarnation of the server it is: the reads have proven it",
		Edits:   []Edit{{"internal/progress/sql/guard.sql", `{incarnation} = $4::text AND $3::bigint`, `$4::text <> '' AND $3::bigint`}},
		Test:    Test{"./internal/progress", "TestGuardPassesOnlyUnchangedProgress"},
	},
	{
		Name:    "no-owner",
		Mistake: "the guard does not ask whether the consumer is still assigned to this worker: the coordinator has said so",
		Edits: []Edit{{"internal/progress/sql/guard.sql", `
		AND EXISTS (SELECT FROM {assignments} WHERE consumer_name = $1::text AND worker_id = $5::uuid)`, `
		AND $5::uuid IS NOT NULL`}},
		Faults: calm + ",deafen=10",
	},
	{
		Name:    "backwards",
		Mistake: "a checkpoint goes to where this worker's frontier is, also if the owner before has come further",
		Edits: []Edit{
			{"frontier/crossing.go", `max(p.Checkpoint, min(p.Through, v.Safe))`, `min(p.Through, v.Safe)`},
			{"internal/progress/sql/guard.sql", `revision = $2::bigint AND last_position <= $3::bigint`, `revision = $2::bigint`},
		},
		Faults: "kill-scan=5,cut=2,delay=3",
		Draws:  "open gaps skip-stale",
	},
	{
		Name:    "pool-unproven",
		Mistake: "a connection that the pool gives out has no transaction open: database/sql and the driver see to that",
		Edits:   []Edit{{"internal/pgdriver/pool.go", "if err = checkSession(ctx, conn); err == nil {\n\t\t\treturn conn, nil", "if err == nil {\n\t\t\treturn conn, nil"}},
		Faults:  calm + ",left=10",
	},
	{
		Name:    "checkpoint-apart",
		Mistake: "the checkpoint is committed before the handlers run, to keep its row's lock short",
		Edits: []Edit{{"internal/consume/batch.go", `	// The wait for the guard is not the handler's fault: BatchTimeout starts after it.`, `	if err := tx.Commit(); err != nil {
		return result{outcome: disturbed, err: err}
	}
	if tx, err = conn.BeginTx(ctx, nil); err != nil {
		return result{outcome: disturbed, err: err}
	}`}},
	},
	{
		Name:    "audit-apart",
		Mistake: "the audit is written in a transaction of its own, before the batch",
		Edits: []Edit{
			{"internal/progress/checkpoints.go", `with("guard", sqltext.Values{"effects": r("audited"), "audit": r("audit"), "all_kept": r("kept")}),`,
				"texts.Fill(`WITH guard AS (SELECT $2::bigint, $4::text, $6::text, $7::text, $8::bigint, $9::bigint, $10::bigint, $11::bigint, $12::bigint, $13::bigint, $14::boolean, $18::text, clock_timestamp() AS updated_at, '' AS partition_key, NULL::jsonb AS scope){audit} SELECT 1`, values),"},
			{"internal/progress/guard.go", `statement, args = c.guardAndAudit, append(args, a.Head, string(marks), string(gone), stored(a.Effects), string(rows))`,
				`if _, err := ctx.Value("db").(*sql.DB).ExecContext(ctx, c.guardAndAudit, append(args, a.Head, string(marks), string(gone), stored(a.Effects), string(rows))...); err != nil {
			return m, false, err
		}`},
			{"internal/consume/batch.go", `Guard(inner, c.w.db.Plans.On(conn, tx), c.unit.name, &w.from, w.advance)`, `Guard(context.WithValue(inner, "db", c.w.db.DB), tx, c.unit.name, &w.from, w.advance)`},
		},
	},
}

// openRangeMutants are about positions that were passed while they were in doubt.
var openRangeMutants = []Mutant{
	{
		Name:    "doubts-after",
		Mistake: "the doubts are taken from the frontier after the rows were read, because they are fresher then",
		Edits:   []Edit{{"internal/consume/consumer_loop.go", `blocked := w.plan(c.w.cfg.MaxOpenRanges)`, "w.under = c.w.frontier.Value()\n\tblocked := w.plan(c.w.cfg.MaxOpenRanges)"}},
		Faults:  calm + ",delay=8",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "forgotten",
		Mistake: "a consumer's open ranges are those that this worker has recorded; after a change of owner they are forgotten",
		Edits: []Edit{
			{"internal/progress/sql/load.sql", `WHERE consumer_name = $1::text AND state = 'open'), '[]')`,
				`WHERE consumer_name = $1::text AND state = 'open' AND worker_id = '{worker}'), '[]')`},
			{"internal/progress/checkpoints.go", `"incarnation": server.Incarnation, "last"`, `"worker": worker.String(), "incarnation": server.Incarnation, "last"`},
		},
		Faults: calm + ",delay=6,move=10",
		Draws:  "open gaps skip-stale",
	},
	{
		Name:    "kept-by-reset",
		Mistake: "a reset sets the checkpoint back and leaves the open ranges above it: they are watched until they end",
		Edits:   []Edit{{"ops/reset.go", `gap_position > $2::bigint`, `gap_position > $2::bigint AND false`}},
		Faults:  "reset=6,delay=3",
		Draws:   "open gaps skip-stale",
	},
}

// receiptMutants are about the receipts of what was handled.
var receiptMutants = []Mutant{
	{
		Name:    "receipt-set",
		Mistake: "the guard sets the receipt that its worker has computed, since it has loaded the row",
		Edits:   []Edit{{"internal/receipt/receipt.go", `before != nil && before.First == r.First && before.Last == from`, `false && before != nil && before.Last == from`}},
		Test:    Test{"./internal/progress", "TestGuardAddsToTheReceipt"},
	},
	{
		Name:    "receipt-of-new-events",
		Mistake: "the events of a batch lie above its checkpoint",
		Edits: []Edit{{"internal/receipt/receipt.go", `		if e.Position < next.First {`, `		if e.Position <= from {
			continue
		}
		if e.Position < next.First {`}},
		Faults: calm + ",delay=6",
		Draws:  "open gaps skip-stale",
	},
	{
		Name:    "receipt-kept-by-reset",
		Mistake: "a reset sets the position back; what was handled was handled",
		Edits:   []Edit{{"ops/reset.go", `last_position = $2::bigint, receipt = NULL`, `last_position = $2::bigint`}},
		Faults:  "reset=6",
	},
	{
		Name:    "receipt-of-a-skipped-event",
		Mistake: "a skipped event was not handled, so it has no receipt",
		Edits: []Edit{{"ops/skip.go", `	unit := ` + "`$1::text`" + `
	if at.key`, `	unit := ` + "`$1::text`" + `
	if true {
		return nil
	}
	if at.key`}},
		Faults: calm + ",skip=6",
	},
}

// handledMutants are about what counts as handled, or need not be.
var handledMutants = []Mutant{
	{
		Name:    "placed-by-safe",
		Mistake: "a consumer that begins at the head is placed when the head is safe: all others go on past it then, too",
		Edits:   []Edit{{"internal/consume/place.go", `v.Settled >= head`, `v.Safe >= head`}},
		Faults:  "delay=5,redraw=2",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "settled-after",
		Mistake: "skipping an event reads what is settled after the event, because it is fresher then",
		Edits: []Edit{
			{"ops/skip.go", `	// The settled position is read first: a settled position without an event in a later
	// snapshot is void.
	settled, err := frontier.Settled(ctx, c.tx, sequenced{c.t}, c.t.Settled)
	if err != nil {
		return d, err
	}
	next, err := c.eventAfter(ctx, at.position)
	if err != nil {
		return d, err
	}
`, `	next, err := c.eventAfter(ctx, at.position)
	if err != nil {
		return d, err
	}
	settled, err := frontier.Settled(ctx, c.tx, sequenced{c.t}, c.t.Settled)
	if err != nil {
		return d, err
	}
`},
		},
		Test: Test{"./ops", "TestSkipDoesNotMarkAppearedEventVoid"},
	},
	{
		Name:    "late-together",
		Mistake: "the late events are read without regard to which of them is under suspicion: they are few",
		Edits:   []Edit{{"internal/reader/reader.go", `from.Bound < Unbounded && upTo < min(`, `false && upTo < min(`}},
		Test:    Test{"./internal/e2e", "TestLateEventThatCannotBeHandledIsFound"},
	},
	{
		Name:    "passed-is-handled",
		Mistake: "WaitFor returns when the checkpoint is there, also if the consumer has passed the position in doubt",
		Edits:   []Edit{{"internal/progress/arrival.go", `a.Position >= position && !a.Open`, `a.Position >= position`}},
		Test:    Test{"./internal/e2e", "TestWaitForALateEvent"},
	},
	{
		Name:    "refused-idle",
		Mistake: "only a guard that is let through limits its transaction: one that is refused has the row's lock, too",
		Edits:   []Edit{{"internal/progress/sql/guard.sql", "\n\t\tAND (SELECT lock || idle FROM limits) IS NOT NULL\n\tRETURNING", "\n\tRETURNING"}},
		Test:    Test{"./internal/progress", "TestServerEndsAnIdleFailedGuard"},
	},
	{
		Name:    "session-timeout",
		Mistake: "the idle time-out of a batch is set for the session: the next batch sets it again",
		Edits:   []Edit{{"internal/progress/sql/guard.sql", `set_config('idle_in_transaction_session_timeout', $6::text, true)`, `set_config('idle_in_transaction_session_timeout', $6::text, false)`}},
	},
}

// contractMutants are about handlers that end their transaction.
var contractMutants = []Mutant{
	{
		Name:    "no-repair",
		Mistake: "a batch that its handler committed is reported, and its checkpoint stays: the worker ends, so somebody will see to it",
		Edits:   []Edit{{"internal/consume/txcheck/outcome.go", `repaired, err = c.unit.Checkpoints.Repair(ctx, c.unit.Plans.On(conn, conn), c.unit.Name, b.Left(), m); !repaired {`, `repaired = m.To >= 0; !repaired {`}},
		Faults:  calm + ",contract=4",
	},
	{
		Name:    "short-batch-keeps-checkpoint",
		Mistake: "a batch that ends early commits the checkpoint that its guard has set: the events behind follow in the next batch",
		Edits:   []Edit{{"internal/consume/batch.go", `return c.shorten(ctx, t, moved.Role, w, b)`, `w.shortened = true; return nil`}},
		Faults:  calm + ",slow-batch=6",
	},
	{
		Name:    "pgx-transaction-committed",
		Mistake: "what the library did in a transaction of pgx is committed when the library is done: its caller need not think of that",
		Edits: []Edit{{"store/pgxtx/pgxtx.go", `	return f(view)`, `	if err = f(view); err == nil {
		_, err = tx.Exec(context.Background(), "COMMIT; BEGIN")
	}
	return err`}},
		Faults: calm + ",savepoint=0,rollback=4",
	},
	{
		Name:    "dropped-proof",
		Mistake: "a loop that ends in an outage asks no more what became of its last batch: another worker goes on from the row",
		Edits:   []Edit{{"internal/consume/consumer_loop.go", `fatal = c.check.Close(ctx, fatal)`, ``}},
		Test:    Test{"./internal/e2e", "TestStopInAnOutageSaysWhatIsNotKnown"},
	},
	{
		Name:    "row-only",
		Mistake: "a row that others have moved on says nothing of a batch, so its handler did nothing",
		Edits:   []Edit{{"internal/consume/txcheck/outcome.go", `case b.End == Abandoned && b.movedOn(now):`, `case false:`}},
		Test:    Test{"./internal/e2e", "TestHandlerThatCommitsAndIsOvertaken"},
	},
}

// failureMutants are about what fails, and what it is counted with.
var failureMutants = []Mutant{
	{
		Name:    "spoiled-kept",
		Mistake: "a connection on which reading ahead has failed goes back to the pool: the server is at fault, not the session",
		Edits:   []Edit{{"internal/reader/background.go", `defer func() { conn.GiveBack(err) }()`, `defer func() { conn.GiveBack(nil) }()`}},
		Test:    Test{"./internal/consume", "TestSpoiledSessionLeavesThePool"},
	},
	{
		Name:    "one-tally",
		Mistake: "a dead letter's failures are counted with those of what is new: it is the same consumer",
		Edits:   []Edit{{"internal/consume/agenda.go", `return &a.again`, `return &a.tally`}},
		Test:    Test{"./internal/e2e", "TestDeadLetterThatAlwaysConflicts"},
	},
}

// coordMutants are about who runs what.
var coordMutants = []Mutant{
	{
		Name:    "no-proof",
		Mistake: "the leader writes assignments without a proof, in the same transaction, that it still leads: it has just read that",
		Edits: []Edit{
			{"coord/statements.go", "SELECT 1 WHERE ` + holdsLock + `", "SELECT 1"},
			{"coord/statements.go", "	FOR UPDATE\n), leader AS MATERIALIZED (\n	SELECT 1 FROM locked WHERE ` + c.valid(\"locked\") + `\n", "), leader AS MATERIALIZED (\n	SELECT 1\n"},
		},
		Faults: "depose=10",
		Draws:  "leader lease",
	},
	{
		Name:    "no-poll",
		Mistake: "a worker that listens for notifications need not poll for events",
		Edits:   []Edit{{"internal/consume/start.go", `f.Interval = reconcileInterval`, `f.Interval = 24 * time.Hour`}},
		Faults:  calm + ",notify-lost=4",
	},
	{
		Name:    "no-reconcile",
		Mistake: "the leader reads the assignments after a notification only, and never polls them",
		Edits:   []Edit{{"coord/session.go", `time.Since(s.checked) >= s.cfg.RebalanceInterval`, `s.checked.IsZero()`}},
		Faults:  calm + ",unassign=10",
	},
}
