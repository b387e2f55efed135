package mutants

// tableMutants are about jobs that are rows of a user's table.
var tableMutants = []Mutant{
	{
		Name:    "table-no-fence",
		Mistake: "a row that is still in processing is still ours: its id is enough",
		Edits:   []Edit{{"jobs/table/sql/settle_fence.sql", `AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $2::text`, `AND t.{id} = d.id AND d.started IS NOT NULL AND $2::text <> ''`}},
		Test:    Test{"./jobs/table", "TestZombie"},
	},
	{
		Name:    "table-fence-by-worker",
		Mistake: "a row is told by its worker: that does not claim the same row twice",
		Edits:   []Edit{{"jobs/table/sql/settle_fence.sql", `AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $2::text`, `AND t.{id} = d.id AND d.started IS NOT NULL AND t.{worker_hostname} = $2::text`}},
		Test:    Test{"./jobs/table", "TestZombie"},
	},
	{
		Name:    "table-heartbeat-waits",
		Mistake: "a heartbeat waits for a row that somebody holds, as any UPDATE does",
		Edits:   []Edit{{"jobs/table/sql/beat.sql", "{fence} AND t.{state} = 'processing' FOR NO KEY UPDATE OF t SKIP LOCKED", "{fence} AND t.{state} = 'processing' FOR NO KEY UPDATE OF t"}},
		Test:    Test{"./jobs/table", "TestLockedRowDelaysNoOtherJobOfTheTable"},
	},
	{
		Name:    "table-heartbeat-for-update",
		Mistake: "what is about to be updated is locked FOR UPDATE",
		Edits:   []Edit{{"jobs/table/sql/beat.sql", "{fence} AND t.{state} = 'processing' FOR NO KEY UPDATE OF t SKIP LOCKED", "{fence} AND t.{state} = 'processing' FOR UPDATE OF t SKIP LOCKED"}},
		Test:    Test{"./jobs/table", "TestForeignKeyToTheJob"},
	},
	{
		Name:    "table-reset-at-once",
		Mistake: "a heartbeat that is older than StalledMaxAge shows that its worker is lost",
		Edits:   []Edit{{"jobs/table/reset.go", `due := known.see(silent, time.Now(), r.store.settings.stalled/2)`, `due := silent`}},
		Test:    Test{"./jobs/table", "TestOldHeartbeatsOfTheLiving"},
	},
	{
		Name:    "table-claim-forgotten",
		Mistake: "a claim that was not answered has not happened",
		Edits: []Edit{{"jobs/table/loop.go", `			l.doubtTo = l.claimed.Add(l.store.settings.stalled)
`, ``}},
		Test: Test{"./jobs/table", "TestLostAnswerOfAClaim"},
	},
	{
		Name:    "table-complete-unchecked",
		Mistake: "a handler that has called CompleteTx and returns nil has completed its job",
		Edits:   []Edit{{"jobs/table/outcome.go", `return StateErrored, text(errUncommitted), nil, false`, `return StateCompleted, nil, nil, false`}},
		Test:    Test{"./jobs/table", "TestCompleteTx"},
	},
	{
		Name:    "table-cancel-late",
		Mistake: "only a run that has heard of its cancel is canceled",
		Edits:   []Edit{{"jobs/table/sql/settle.sql", `WHEN t.{cancel} OR d."to" = 'canceled' THEN 'canceled'`, `WHEN d."to" = 'canceled' THEN 'canceled'`}},
		Test:    Test{"./jobs/table", "TestErrorBeforeTheCancelIsSeen"},
	},
	{
		Name:    "table-settled-twice",
		Mistake: "a row that the fence finds has not been settled yet",
		Edits:   []Edit{{"jobs/table/sql/settle.sql", `AND t.{id} = m.id AND m.was = 'processing'`, `AND t.{id} = m.id`}},
		Test:    Test{"./jobs/table", "TestLostAnswerOfASettle"},
	},
	{
		Name:    "table-refused-at-front",
		Mistake: "a row that the table refuses is told, and need not be left out",
		Edits:   []Edit{{"internal/batch/batch.go", `if now.Before(one.until) {`, `if now.IsZero() && now.Before(one.until) {`}},
		Test:    Test{"./jobs/table", "TestRowsThatCannotBeClaimed"},
	},
	{
		Name:    "table-unchanged-unseen",
		Mistake: "a row that an UPDATE was to change and has not returned was another's by then",
		Edits:   []Edit{{"jobs/table/sql/settle.sql", `CASE WHEN was = 'processing' THEN 'unchanged' ELSE was END FROM mine WHERE id NOT IN (SELECT id FROM settled)`, `was FROM mine WHERE was <> 'processing'`}},
		Test:    Test{"./jobs/table", "TestRowsThatStayAsTheyAre"},
	},
}
