package mutants

// rescaling splits and merges all the time, beside workers that die and moments in
// which positions are in doubt.
const rescaling = calm + ",rescale=10"

const rescaleFile = "internal/progress/rescale.go"

// partitionMutants are about consumers in partitions: mistakes of those who split
// and merge.
var partitionMutants = []Mutant{
	{
		Name:    "split-revision-0",
		Mistake: "a new unit is a new row: its revision starts at 0",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `SELECT unit, last_position, revision + 1, $4::text`, `SELECT unit, last_position, 0, $4::text`}},
		Faults:  rescaling,
	},
	{
		Name:    "merge-own-revision",
		Mistake: "merged to one again, the own row of the consumer goes on from its own revision",
		Edits:   []Edit{{"internal/progress/sql/merge.sql", `greatest(c.revision + 1, excluded.revision)`, `c.revision + 1`}},
		Test:    Test{"./internal/progress", "TestSplitAndMergeMoveEverything"},
	},
	{
		Name:    "split-keeps-own-revision",
		Mistake: "a split marks the own row of the consumer and leaves its revision: the row does nothing any more",
		Edits:   []Edit{{rescaleFile, `SET split_at = clock_timestamp(), receipt = NULL, revision = revision + 1,`, `SET split_at = clock_timestamp(), receipt = NULL,`}},
		Test:    Test{"./internal/progress", "TestSplitAndMergeMoveEverything"},
	},
	{
		Name:    "merge-lower",
		Mistake: "a merge goes on from the lowest position of its parts",
		Edits: []Edit{
			{"internal/consume/partitions/replace.go", `|| p.Position != parts[0].Position`, ``},
			{"internal/consume/partitions/barrier.go", `if s.at < g.upTo || s.unready {`, `if s.unready {`},
			{rescaleFile, `max(revision, p.Revision)`, `max(revision, p.Revision); parts[0].Position = min(parts[0].Position, p.Position)`},
		},
		Faults: rescaling,
	},
	{
		Name:    "merge-higher",
		Mistake: "a merge goes on from the highest position of its parts",
		Edits: []Edit{
			{"internal/consume/partitions/replace.go", `|| p.Position != parts[0].Position`, ``},
			{"internal/consume/partitions/barrier.go", `if s.at < g.upTo || s.unready {`, `if s.unready {`},
			{rescaleFile, `max(revision, p.Revision)`, `max(revision, p.Revision); parts[0].Position = max(parts[0].Position, p.Position)`},
		},
		Faults: rescaling,
	},
	{
		Name:    "merge-blind",
		Mistake: "equal positions are equal states: the open ranges of all parts are united without a read of the log",
		Edits:   []Edit{{"internal/consume/partitions/replace.go", `if appeared || err != nil {`, `if appeared && err != nil || err != nil {`}},
		Test:    Test{"./internal/consume", "TestMergeRefusesAppearedEvent"},
	},
	{
		Name:    "merge-keeps-common-doubts",
		Mistake: "the merged unit keeps the open ranges that all its parts have: who has another has only not polled yet",
		Edits:   []Edit{{rescaleFile, `all = unite(found)`, `all = slices.DeleteFunc(unite(found), func(w Watched) bool { return w.by < len(units) })`}},
		Test:    Test{"./internal/consume", "TestMergeRefusesAppearedEvent"},
	},
	{
		Name:    "merge-looks-before-lock",
		Mistake: "a merge reads the open ranges of its parts first: it is over sooner if it must not be",
		Edits: []Edit{{"internal/consume/partitions/replace.go", `	parts, err := r.LockParts(ctx, units, wanted)
	if err != nil || !canMerge(target, parts) {
		return nil, err
	}
	open, some, err := r.Open(ctx, units)
	if err != nil {
		return nil, err
	}
`, `	open, some, err := r.Open(ctx, units)
	if err != nil {
		return nil, err
	}
	parts, err := r.LockParts(ctx, units, wanted)
	if err != nil || !canMerge(target, parts) {
		return nil, err
	}
`}},
		Test: Test{"./internal/consume", "TestRescalingWaitsForABatch"},
	},
	{
		Name:    "merge-without-locks",
		Mistake: "a merge reads its parts, then deletes them: that waits for batches in flight",
		Edits:   []Edit{{rescaleFile, `ORDER BY consumer_name COLLATE "C" FOR UPDATE OF c`, `ORDER BY consumer_name COLLATE "C"`}},
		Test:    Test{"./internal/consume", "TestRescalingWaitsForABatch"},
	},
	{
		Name:    "split-in-one-statement",
		Mistake: "one statement locks the unit and copies its open ranges: the snapshot of the statement is older than its lock",
		Edits: []Edit{
			{"internal/progress/sql/rescale_unit.sql", `worker_id = $2::uuid AND partitions = $3::int) FOR UPDATE`, `worker_id = $2::uuid AND partitions = $3::int)`},
			{"internal/progress/sql/split.sql", "WITH child AS (", "WITH parent AS (\n	SELECT * FROM {checkpoints} WHERE consumer_name = $1::text FOR UPDATE\n), child AS ("},
			{"internal/progress/sql/split.sql", `effects, scope, scope_since FROM {checkpoints}, child WHERE consumer_name = $1::text`, `effects, scope, scope_since FROM parent, child`},
		},
		Test: Test{"./internal/consume", "TestRescalingWaitsForABatch"},
	},
	{
		Name:    "split-from-memory",
		Mistake: "a split begins its children where the loop stands: it has just loaded the row",
		Edits: []Edit{
			{"internal/consume/partitions/replace.go", `	position, found, ok, err := r.LockUnit(`, `	var at int64
	_ = tx.QueryRowContext(ctx, "SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1::text", u.Name).Scan(&at)
	position, found, ok, err := r.LockUnit(`},
			{"internal/consume/partitions/replace.go", `r.Split(ctx, u.Name`, `r.Split(context.WithValue(ctx, "at", at), u.Name`},
			{"internal/progress/sql/split.sql", `SELECT unit, last_position, revision + 1, $4::text`, `SELECT unit, $5::bigint, revision + 1, $4::text`},
			{rescaleFile, `string(moves), key)`, `string(moves), key, ctx.Value("at"))`},
		},
		Test: Test{"./internal/consume", "TestRescalingWaitsForABatch"},
	},
	{
		Name:    "merge-forgets-doubts",
		Mistake: "the merged unit needs no open ranges: its parts have watched them",
		Edits:   []Edit{{rescaleFile, `watched, err2 := json.Marshal(append([]Watched{}, open...))`, `watched, err2 := json.Marshal(append([]Watched{}, open[:0]...))`}},
		Test:    Test{"./internal/e2e", "TestDoubtsAtASplit"},
	},
	{
		Name:    "split-forgets-doubts",
		Mistake: "open ranges belong to the past of the unit that is split",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `NULL FROM gone, child`, `NULL FROM gone, child WHERE false`}},
		Test:    Test{"./internal/e2e", "TestDoubtsAtASplit"},
	},
	{
		Name:    "split-doubts-once",
		Mistake: "open ranges go to one of the children: each position has one event",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `NULL FROM gone, child`, `NULL FROM gone, child WHERE unit = (SELECT max(unit) FROM child)`}},
		Test:    Test{"./internal/e2e", "TestDoubtsAtASplit"},
	},
	{
		Name:    "split-leaves-letters",
		Mistake: "dead letters stay under the name that wrote them",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `WHERE l.consumer_name = $1::text AND l.global_position = m.position`, `WHERE l.consumer_name = $1::text AND l.global_position = m.position AND false`}},
		Test:    Test{"./internal/e2e", "TestDeadLettersFollowTheirKey"},
	},
	{
		Name:    "split-copies-letters",
		Mistake: "each child gets all dead letters: those of other keys hold up nobody there",
		Edits: []Edit{{"internal/progress/sql/split.sql", "	UPDATE {dead_letters} AS l SET consumer_name = m.unit FROM jsonb_to_recordset($3::jsonb) AS m(position bigint, unit text)\n	WHERE l.consumer_name = $1::text AND l.global_position = m.position\n",
			"	DELETE FROM {dead_letters} AS l USING jsonb_to_recordset($3::jsonb) AS m(position bigint, unit text)\n	WHERE l.consumer_name = $1::text AND l.global_position = m.position RETURNING l.*\n" +
				"), copied AS (\n	INSERT INTO {dead_letters} (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, retry_at, order_key, replay, forget)\n" +
				"	SELECT unit, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, retry_at, order_key, replay, forget FROM moved, child\n"}},
		Test: Test{"./internal/progress", "TestSplitAndMergeMoveEverything"},
	},
	{
		Name:    "merge-leaves-letters",
		Mistake: "dead letters stay with the part that wrote them",
		Edits:   []Edit{{"internal/progress/sql/merge.sql", `SET consumer_name = $2::text WHERE`, `SET consumer_name = $2::text WHERE false AND`}},
		Test:    Test{"./internal/e2e", "TestDeadLettersFollowTheirKey"},
	},
	{
		Name:    "reset-beside-a-split",
		Mistake: "an operation locks the units that it changes: it need not lock the own row of the consumer",
		Edits:   []Edit{{"ops/units.go", `consumer_name = $1::text FOR UPDATE` + "`, consumer, idleLimit", `consumer_name = $1::text` + "`, consumer, idleLimit"}},
		Test:    Test{"./ops", "TestResetWaitsForASplit"},
	},
	{
		Name:    "pages-lose-gaps",
		Mistake: "pages that are joined for a part have the gaps of the last one",
		Edits:   []Edit{{"internal/reader/page.go", `p.Positions.Missing = append(slices.Clip(p.Positions.Missing), next.Positions.Missing...)`, `p.Positions.Missing = slices.Clip(next.Positions.Missing)`}},
		Faults:  rescaling + ",reset=6",
	},
	{
		Name:    "parts-in-turn",
		Mistake: "parts of one consumer in one worker take turns, as those of a consumer do that is not safe for more",
		Edits:   []Edit{{"internal/consume/unit.go", `Key: p.Key.Name()}, partitions.Key{Key: p.Key}`, `Key: p.Key.Name()}, partitions.Key{Key: p.Key}; d.exclusive = make(chan struct{}, 1)`}},
		Test:    Test{"./internal/e2e", "TestPartsHandleAtTheSameTime"},
	},
	{
		Name:    "letters-by-aggregate",
		Mistake: "dead letters follow each other by aggregate, whatever key keeps the order of the consumer",
		Edits: []Edit{{"internal/consume/partitions/key.go", `	key, err := k.of(e)
	if ascii {
		key = errtext.ASCII(key)
	}
	return progress.Order{ID: storable(key)}, err`, `	return progress.Order{Type: e.AggregateType, ID: e.AggregateID}, nil`}},
		Test: Test{"./internal/e2e", "TestDeadLettersHoldUpTheirKey"},
	},
	{
		Name:    "compact-over-lives",
		Mistake: "the audit rows of a name are of one unit: between them is nothing but resets of that name",
		Edits:   []Edit{{"internal/progress/sql/compact.sql", `operation IN ('split', 'merge')`, `operation IN ('split', 'merge') AND false`}},
		Test:    Test{"./internal/progress", "TestCompactionKeepsTheAudit"},
	},
	{
		Name:    "split-unpauses",
		Mistake: "children begin unpaused",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `$4::text, paused_at, paused_by, paused_reason, effects, scope, scope_since FROM`, `$4::text, NULL, NULL, NULL, effects, scope, scope_since FROM`}},
		Test:    Test{"./internal/e2e", "TestPausesAndRescaling"},
	},
	{
		Name:    "merge-paused",
		Mistake: "a merge goes on if any of its parts may",
		Edits: []Edit{
			{"internal/consume/partitions/replace.go", `|| p.Paused ||`, `||`},
			{"internal/consume/agenda.go", `return a.progress.Paused != nil || t.Failures`, `return t.Failures`},
		},
		Test: Test{"./internal/consume/partitions", "TestCanMerge"},
	},
	{
		Name:    "slot-of-a-position",
		Mistake: "any spread of the events over the parts will do: by position it is even",
		Edits: []Edit{
			{"internal/consume/partitions/key.go", `return partition.Slot(e.AggregateID), nil`, `return int(e.GlobalPosition % partition.Slots), nil`},
		},
		Faults: rescaling,
	},
	{
		Name:    "slot-salted",
		Mistake: "the hash has a salt, so that nobody can make keys of one slot: each worker has its own",
		Edits: []Edit{
			{"internal/consume/unit.go", `	"slices"`, "	\"math/rand/v2\"\n	\"slices\""},
			{"internal/consume/unit.go", `type spec struct {`, "type spec struct {\n	salt string"},
			{"internal/consume/unit.go", `d := &spec{`, `d := &spec{salt: strconv.FormatUint(rand.Uint64(), 10), `},
			{"internal/consume/consumer_loop.go", `Slot: u.key.SlotOf,`, `Slot: func(e *store.PersistedEvent) (int, error) { return partition.Slot(u.salt + e.AggregateID), nil },`},
		},
		Faults: rescaling,
	},
	{
		Name:    "split-deletes-own-row",
		Mistake: "a split deletes the own row of the consumer as it does any other unit's",
		Edits: []Edit{{rescaleFile, `		last = r.c.rescale.inert
`, `		last = r.c.rescale.remove
`}},
		Faults: rescaling,
	},
	{
		Name:    "lazy-over-doubts",
		Mistake: "what has no event of the part's own needs no batch, whatever is missing in it",
		Edits:   []Edit{{"internal/consume/agenda.go", `len(w.Events)+len(w.deadLetters)+len(to.Marks)+len(to.Gone)+len(w.from.Open) > 0`, `len(w.Events)+len(w.deadLetters)+len(to.Gone)+len(w.from.Open) > 0`}},
		Test:    Test{"./internal/consume", "TestDeferredCommitConditions"},
	},
	{
		Name:    "reader-keeps-place",
		Mistake: "the reader knows where its consumer stands, and a batch that was rolled back has changed nothing: the next page follows",
		Edits: []Edit{
			{"internal/reader/ahead.go", "	w.at[r] = at\n", "	at = w.at[r]\n"},
			{"internal/consume/consumer_loop.go", `		c.forget() // the database knows whether anything was committed`, `		if c.polled = nil; r.outcome != handlerFailed || c.progress == nil {
			c.forget()
		}`},
		},
		Faults: rescaling + ",error=6",
	},
	{
		Name:    "wait-for-any-part",
		Mistake: "WaitFor is done when the first unit is there",
		Edits:   []Edit{{"internal/progress/sql/arrived.sql", `min(u.last_position)`, `max(u.last_position)`}},
		Test:    Test{"./internal/progress", "TestArrivalOfASplitConsumer"},
	},
	{
		Name:    "wait-for-own-row",
		Mistake: "WaitFor reads the row of the consumer's name: that is where it is",
		Edits: []Edit{{"internal/progress/sql/arrived.sql", `named.name AND split_at IS NULL
	UNION ALL
	SELECT c.consumer_name, c.last_position, c.paused_at, c.paused_by, c.paused_reason FROM {checkpoints} AS own
	JOIN {checkpoints} AS c ON left(c.consumer_name, length(named.name) + 1) = named.name || '#'
	WHERE own.consumer_name = named.name AND own.split_at IS NOT NULL`, `named.name`}},
		Test: Test{"./internal/progress", "TestArrivalOfASplitConsumer"},
	},
	{
		Name:    "wait-for-shadow",
		Mistake: "WaitFor waits for any version of a projection",
		Edits:   []Edit{{"internal/progress/sql/arrived.sql", ` AND NOT effects @> '[{"after": 9223372036854775807}]'`, ``}},
		Test:    Test{"./internal/progress", "TestArrivalOfAProjection"},
	},
	{
		Name:    "next-version-acts",
		Mistake: "the next version of a projection begins with effects of its own",
		Edits:   []Edit{{"internal/progress/sql/place.sql", `CASE WHEN EXISTS (`, `CASE WHEN false AND EXISTS (`}},
		Test:    Test{"./internal/progress", "TestPlaceOfAVersion"},
	},
	{
		Name:    "versions-begin-at-once",
		Mistake: "two versions of a projection that begin at the same time need no turn",
		Edits:   []Edit{{"internal/progress/scope.go", `if projection != "" {`, `if false {`}},
		Test:    Test{"./internal/progress", "TestVersionsBeginAtOnce"},
	},
	{
		Name:    "old-programs-split",
		Mistake: "programs from before partitions say nothing of them, so they do not count",
		Edits: []Edit{{"coord/layout.go", `			old = true
`, `			old = false
`}},
		Test: Test{"./coord", "TestWantedPartitions"},
	},
	{
		Name:    "old-build-goes-on",
		Mistake: "a build that selects less goes on until the leader gives its consumers to another",
		Edits: []Edit{{"internal/consume/worker.go", `	widen(ctx, &w.env, w.cfg.HeartbeatTimeout/2) // from now on the other workers see that this worker is alive
`, ``}},
		Test: Test{"./internal/e2e", "TestBuildsThatDifferDoNotRunSideBySide"},
	},
	{
		Name:    "assigned-build-is-right",
		Mistake: "who is assigned a consumer selects what it is to select",
		Edits:   []Edit{{"internal/consume/precedence/precedence.go", `case is.Scope != nil && is.Scope.Compare(p.unit.Scope) > 0:`, `case false:`}},
		Test:    Test{"./internal/e2e", "TestOutrankedBuildWaits"},
	},
	{
		Name:    "stops-in-silence",
		Mistake: "the others hear of a stop when its last batch has ended",
		Edits: []Edit{{"internal/consume/worker.go", `	g.Run(func() error { w.supervisor.handOver(running); return nil })
`, ``}},
		Test: Test{"./internal/e2e", "TestOneSlowBatchKeepsNoOtherConsumer"},
	},
	{
		Name:    "draining-units-are-dealt",
		Mistake: "a worker that stops needs its consumers no longer",
		Edits:   []Edit{{"coord/plan.go", `case draining[was]:`, `case draining[was] && false:`}},
		Test:    Test{"./internal/e2e", "TestStopKeepsAConsumerUntilItsBatchHasEnded"},
	},
}
