package mutants

// jobCalm keeps off what takes long and is in the way.
const jobCalm = "hole=0,server-crash=0,backend-crash=0,slow=0"

// jobMutants are about who runs a job, who ends it, and what counts.
var jobMutants = []Mutant{
	{
		Name: "attempt-fence", Jobs: true,
		Mistake: "a run is told by its job and attempt, which are there already: no claim comes twice",
		Edits:   []Edit{{"internal/queue/sql/claim.sql", `claimed_by = $1::uuid, claim = $2::bigint`, `claimed_by = $1::uuid, claim = j.attempt + 1 + 0 * $2::bigint`}},
		Test:    Test{"./internal/queue", "TestClaimLostInCrash"},
	},
	{
		Name: "claim-kept", Jobs: true,
		Mistake: "a job that is to run again keeps its last claim, for people to see; the next claim overwrites it",
		Edits: []Edit{
			{"internal/queue/sql/freed.sql", `state = 'available', claim = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL`, `state = 'available', claimed_at = NULL, started_at = NULL`},
			{"migrations/jobs.go", `"(state = 'running') = (claim IS NOT NULL) AND (state = 'running') = (claimed_by IS NOT NULL)"`, `"state <> 'running' OR claim IS NOT NULL"`},
		},
		Test: Test{"./internal/queue", "TestStatementsAgreeWithModel"},
	},
	{
		Name: "count-with-lock", Jobs: true,
		Mistake: "what runs of a capped queue is counted by the statement that locks the cap: one statement less",
		Edits: []Edit{
			{"internal/queue/sql/lock.sql", `SELECT name, max_running, set_config`, `SELECT name, max_running - (SELECT count(*) FROM {jobs} AS j WHERE j.state = 'running' AND (c.name = '*' OR j.queue = c.name)), set_config`},
			{"internal/queue/sql/lock.sql", `FROM {queues} WHERE name IN ('*', $1::text) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE`, `FROM {queues} AS c WHERE name IN ('*', $1::text) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE`},
			{"internal/queue/sql/room.sql", `$2::bigint - CASE WHEN $2::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running' AND queue = $1::text) END`, `$2::bigint + 0 * length($1::text)`},
			{"internal/queue/sql/room.sql", `$3::bigint - CASE WHEN $3::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running') END`, `$3::bigint`},
		},
		Faults: jobCalm + ",cap=4",
	},
	{
		Name: "blind-reset", Jobs: true,
		Mistake: "the leader has seen that a worker is dead, so the statement that takes its jobs need not read it again",
		Edits: []Edit{{"internal/liveness/registry.go", "return givenCTE + `, ` + r.dead(), args, err",
			"return `WITH dead AS (SELECT (s->>'id')::uuid AS worker_id FROM jsonb_array_elements($3::jsonb) AS s WHERE $1::uuid IS NOT NULL AND $2::bigint + $4::int + $5::bigint > 0)`, args, err"}},
		Test: Test{"./coord", "TestDeadSQLChecksAgain"},
	},
	{
		Name: "all-or-none-claimed", Jobs: true,
		Mistake: "a claim that fails is sent again: what made it fail will be over",
		Edits:   []Edit{{"jobs/claim.go", `if pgdriver.FaultOf(err) != pgdriver.FaultServer &&`, `if pgdriver.FaultOf(err) > pgdriver.FaultRow &&`}},
		Test:    Test{"./jobs", "TestRefusedJobDelaysNoOther"},
	},
	{
		Name: "in-flight-after", Jobs: true,
		Mistake: "a reconciliation takes the set of jobs in flight after the rows, because it is fresher then",
		Edits: []Edit{
			{"jobs/reconcile.go", `	before := c.mine()
	if len(before) == 0 && c.doubt.IsZero() && time.Since(c.last) < idleReconcile*c.cfg.heartbeat {`, `	if len(c.mine()) == 0 && c.doubt.IsZero() {`},
			{"jobs/reconcile.go", `	c.last = time.Now()
`, `	c.last = time.Now()
	before := c.mine()
`},
		},
		Faults: jobCalm,
	},
	{
		Name: "no-low-claims", Jobs: true,
		Mistake: "claims go on above the last job that was claimed: jobs come in the order of their time",
		Edits:   []Edit{{"jobs/claim.go", `c.low = condition.Condition != "" || !begin.Before(c.lanes.lowDue)`, `c.low = condition.Condition != ""`}},
		Faults:  jobCalm + ",crash=0,vanish=0,restart=0,delay=4",
	},
	{
		Name: "all-blamed", Jobs: true,
		Mistake: "each job that a dead worker had claimed was reset, also what it had not started",
		Edits:   []Edit{{"internal/queue/sql/reset.sql", `resets = j.resets + (l.started_at IS NOT NULL)::int`, `resets = j.resets + 1`}},
		Faults:  jobCalm + ",crash=5",
		Draws:   "prefetch 2",
	},
	{
		Name: "unchecked-completion", Jobs: true,
		Mistake: "CompleteTx checks for errors of its statement, and not for how many jobs that has completed",
		Edits: []Edit{{"jobs/run.go", `	return e.stillRun(ctx, tx, *left)`, `	*left = nil
	return nil`}},
		Faults: jobCalm + ",stall=6",
	},
	{
		Name: "no-verdict", Jobs: true,
		Mistake: "what a statement did not find to settle is another's; nobody reads whether the one before has settled it",
		Edits:   []Edit{{"jobs/settler.go", `settled, err := s.queue.Judge(ctx, on, runsOf(missing))`, `settled, err := []queue.Settled(nil), ctx.Err()`}},
		Faults:  jobCalm + ",cut=6",
	},
	{
		Name: "rescue-after-maintenance", Jobs: true,
		Mistake: "a leader does one thing after the other: the jobs of the dead wait for what it removes",
		Edits: []Edit{
			{"jobs/rescue.go", `	chunks chunks[int64]
`, `	other  *maintenance
	chunks chunks[int64]
`},
			{"jobs/start.go", `	w.rescuer.coord = w.coord`, `	w.rescuer.coord, w.rescuer.other = w.coord, w.maintenance`},
			{"jobs/rescue.go", `		if ids := r.due(time.Now()); len(ids) > 0 {`, `		for r.other.turn.Lasts() > 0 && backoff.Sleep(ctx, rescueTick) {
		}
		if ids := r.due(time.Now()); len(ids) > 0 {`},
		},
		Test: Test{"./jobs", "TestMaintenanceDelaysNoRescue"},
	},
	{
		Name: "verdict-as-asked", Jobs: true,
		Mistake: "what was settled before, its answer lost, was settled as it was asked for",
		Edits:   []Edit{{"jobs/settler.go", `s.settledBefore(e, before[id])`, `s.settled(e, e.end.To)`}},
		Test:    Test{"./jobs", "TestCompleteTx"},
	},
	{
		Name: "locked-is-lost", Jobs: true,
		Mistake: "a run that a statement did not settle, and none before it, is another's: nobody reads whether its row was only locked",
		Edits: []Edit{{"internal/queue/sql/verdict.sql", `,
		(SELECT 'running' FROM {jobs} AS j WHERE j.id = d.id AND j.claim = d.claim),`, `,`}},
		Test: Test{"./jobs", "TestLockedRowDelaysNoOtherJob"},
	},
	{
		Name: "unrecorded-step", Jobs: true,
		Mistake: "in a queue of retention 0, the history gets no job that completes, also not the job of a step",
		Edits:   []Edit{{"internal/queue/sql/recorded.sql", ` OR meta->'flow_step' IS NOT NULL`, ``}},
		Test:    Test{"./jobs/flow", "TestRetentionZero"},
	},
	{
		Name: "no-adoption", Jobs: true,
		Mistake: "rows of this worker that it does not know are left alone: the worker that claimed them will know",
		Edits:   []Edit{{"jobs/reconcile.go", `			c.starter.adopt(j)`, `			_ = j`}},
		Faults:  jobCalm + ",crash=0,vanish=0,restart=0,cut=8",
	},
	{
		Name: "kept-prefetched", Jobs: true,
		Mistake: "a stop waits for what runs; what was claimed ahead, the others will find",
		Edits: []Edit{{"jobs/begin.go", `	for _, r := range s.ready {
		s.unclaim(r)`, `	for _, r := range s.ready {
		s.inFlight.Drop(r)
	}
	for _, r := range s.ready[:0] {
		s.unclaim(r)`}},
		Faults: jobCalm + ",crash=0,vanish=0,cut=0,stall=0,restart=8",
		Draws:  "prefetch 2",
	},
	{
		Name: "watermark-only", Jobs: true,
		Mistake: "a consumer's events are settled up to its checkpoint, also those that it has passed in doubt",
		Edits: []Edit{{"internal/queue/sql/raise.sql", `
		(SELECT min(g.gap_position) - 1 FROM {gap_skips} AS g WHERE g.consumer_name = c.consumer_name AND g.state = 'open'),`, ``}},
		Test: Test{"./internal/queue", "TestEmitRecordsInDoubtStay"},
	},
	{
		Name: "tick-uncompared", Jobs: true,
		Mistake: "the row of a schedule is locked, so nobody else can have moved it on",
		Edits:   []Edit{{"jobs/schedule/statements.go", " AND `+pgdriver.Microseconds(`next_at`)+` = $2::bigint FOR", " AND $2::bigint IS NOT NULL FOR"}},
		Faults:  jobCalm,
	},
	{
		Name: "all-caught-up", Jobs: true,
		Mistake: "all ticks that were missed are caught up, however many CatchUp allows",
		Edits:   []Edit{{"jobs/schedule/scheduler.go", `due(p.spec, first, now, max(1, p.catchUp))`, `due(p.spec, first, now, maxCatchUp)`}},
		Faults:  jobCalm,
	},
	{
		Name: "pause-unread", Jobs: true,
		Mistake: "who has moved a schedule on may enqueue its job; the row was read before",
		Edits:   []Edit{{"jobs/schedule/statements.go", `CASE WHEN paused_at IS NOT NULL THEN clock_timestamp() WHEN resumed_at <= clock_timestamp() THEN resumed_at END`, `resumed_at`}},
		Faults:  jobCalm,
	},
	{
		Name: "late-resume", Jobs: true,
		Mistake: "a resume takes the pause away; the processes have let the ticks pass meanwhile",
		Edits:   []Edit{{"ops/jobsschedules.go", `resumed_at = clock_timestamp()`, `resumed_at = resumed_at`}},
		Test:    Test{"./jobs/schedule", "TestPausedWhileNoProcessRuns"},
	},
	{
		Name: "clock-before", Jobs: true,
		Mistake: "a program that gives a schedule other times reads the clock when its transaction begins",
		Edits:   []Edit{{"jobs/schedule/statements.go", "`+toMicros(`clock_timestamp()`)+`, `+bounded+`, coalesce(", "`+toMicros(`transaction_timestamp()`)+`, `+bounded+`, coalesce("}},
		Test:    Test{"./jobs/schedule", "TestOtherTimesBeginAfterTheEarlierOnes"},
	},
	{
		Name: "own-clock", Jobs: true,
		Mistake: "what is due is told by the clock of the process: that spares a statement",
		Edits: []Edit{{"jobs/schedule/scheduler.go", `	read := time.Now()
`, `	read := time.Now()
	now = read
`}},
		Test: Test{"./jobs/schedule", "TestClockOfTheProcessIsOff/an_hour_ahead"},
	},
	{
		Name: "told-again", Jobs: true,
		Mistake: "a step whose job has left has ended; the statement has seen that nobody recorded it before",
		Edits:   []Edit{{"jobs/flow/sql/advance.sql", ` AND s.finished_at IS NULL AND s.state = g.was AND s.job_id IS NOT DISTINCT FROM g.job_id`, ``}},
		Test:    Test{"./jobs/flow", "TestJoinsUnderConcurrentFinishers"},
	},
	{
		Name: "run-unlocked", Jobs: true,
		Mistake: "a worker that records ends locks their rows; the run is locked when its steps are counted",
		Edits: []Edit{{"jobs/flow/sql/given.sql", `ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), mine`, `ORDER BY id
), mine`}},
		Test: Test{"./jobs/flow", "TestRunsAreLockedFirst"},
	},
	{
		Name: "begun-again", Jobs: true,
		Mistake: "a step that is told of enough good ends is enqueued; those that have begun need no more",
		Edits: []Edit{{"jobs/flow/sql/advance.sql", `s.id = ANY (ARRAY(SELECT id FROM counts)) AND s.state IN ('waiting', 'spread')`,
			`s.id = ANY (ARRAY(SELECT id FROM counts)) AND s.finished_at IS NULL`}},
		Faults: jobCalm,
	},
	{
		Name: "no-flow-sweep", Jobs: true,
		Mistake: "a worker tells of the ends of its jobs, the one that is cancelled by its operator: no worker has to poll",
		Edits: []Edit{{"jobs/flow/sweep.go", `	if !mine {
		return`, `	if mine || !mine {
		return`}},
		Faults: jobCalm,
	},
	{
		Name: "one-may-fail", Jobs: true,
		Mistake: "a step is skipped when as many have failed as may",
		Edits:   []Edit{{"jobs/flow/sql/advance.sql", `WHEN s.may_fail - t.bad < 0 AND (s.blamed`, `WHEN s.may_fail - t.bad <= 0 AND (s.blamed`}},
		Faults:  jobCalm,
	},
	{
		Name: "unneeded-at-once", Jobs: true,
		Mistake: "a step that cannot begin any more is skipped at once, also if none of those before has failed yet",
		Edits:   []Edit{{"jobs/flow/sql/advance.sql", `WHEN s.may_fail - t.bad < 0 AND (s.blamed OR t.blamed OR s.need - t.good + s.may_fail - t.bad = 0) THEN`, `WHEN s.may_fail - t.bad < 0 THEN`}},
		Test:    Test{"./jobs/flow", "TestDatabaseAgreesWithModel"},
	},
	{
		Name: "cancelled-once-told", Jobs: true,
		Mistake: "a cancellation ends the jobs of a run; its other steps are told of that",
		Edits:   []Edit{{"jobs/flow/change.go", `[]string{c.sql.cancel, c.sql.shrink, c.sql.stop}`, `[]string{c.sql.cancel}`}},
		Faults:  jobCalm + ",abort=2",
	},
}
