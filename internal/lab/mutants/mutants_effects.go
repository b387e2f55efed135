package mutants

// replaying sets consumers back all the time, over events that were left out, and
// splits and merges them.
const replaying = calm + ",reset=8,skip=4,forward=4,rescale=4"

// effectsMutants are about what a consumer has had the effects of.
var effectsMutants = []Mutant{
	{
		Name:    "reset-forgets-effects",
		Mistake: "a reset sets the position back: what lies above was not handled",
		Edits: []Edit{{"ops/reset.go", `	d = backDetail{From: at.position, To: to}
	if err := c.keepEffects(ctx, at, 0); err != nil {
		return d, err
	}
`, `	d = backDetail{From: at.position, To: to}
`}},
		Faults: replaying,
	},
	{
		Name:    "forward-has-effects",
		Mistake: "what lies below the position was handled, also if an operator set the consumer over it",
		Edits:   []Edit{{"ops/effects.go", `if crossed > at.position {`, `if false && crossed > at.position {`}},
		Faults:  replaying,
	},
	{
		Name:    "effects-of-doubts",
		Mistake: "what lies below the position was handled, doubts and dead letters too",
		Edits:   []Edit{{"ops/effects.go", `Pass(slots, at.key, at.position, pending)`, `Pass(slots, at.key, at.position, pending[:0])`}},
		Test:    Test{"./ops", "TestReplayOmitsDoubts"},
	},
	{
		Name:    "switch-of-one-behind",
		Mistake: "what the other consumer has not reached is not owed",
		Faults:  "switch=4,move=2",
		Edits:   []Edit{{"internal/delivered/shadow.go", `if limit > one.After {`, `if false && limit > one.After {`}},
	},
	{
		Name:    "switch-keeps-effects",
		Mistake: "the consumer that had the effects keeps them",
		Faults:  "switch=4",
		Edits:   []Edit{{"ops/switch.go", `s.setEffects(ctx, from, delivered.Shadow())`, `s.setEffects(ctx, from, from.effects)`}},
	},
	{
		Name:    "switch-trusts-audit",
		Mistake: "an audited range has no events",
		Edits: []Edit{{"ops/switch.go", `return delivered.Without(of, events), nil`, `_ = events
	return of, nil`}},
		Test: Test{"./ops", "TestSwitchIsRefused"},
	},
	{
		Name:    "switch-of-running-units",
		Mistake: "a record of the consumer changes the revision of its units",
		Edits:   []Edit{{"ops/switch.go", `op.Consumer = at.consumer`, `op.Consumer = partition.Consumer(at.consumer)`}},
		Test:    Test{"./ops", "TestSwitchOfUnits"},
	},
	{
		Name:    "shadow-enqueues",
		Mistake: "the keys of a consumer are enough: its jobs are enqueued once",
		Edits:   []Edit{{"jobs/emit.go", `if info.Shadow {`, `if false {`}},
		Test:    Test{"./internal/e2e", "TestSwitchUnderLoad"},
	},
	{
		Name:    "shadow-has-exceptions",
		Mistake: "a shadow lacks effects, as any consumer does",
		Edits:   []Edit{{"internal/delivered/borders.go", `if all[i].After != never {`, `if true {`}},
		Test:    Test{"./internal/delivered", "TestShadowLacksNothing"},
	},
	{
		Name:    "rename-leaves-nothing",
		Mistake: "nobody starts a program with the old name any more",
		Edits:   []Edit{{"ops/rename.go", `err = c.leaveRow(ctx, by)`, `_ = by`}},
		Test:    Test{"./ops", "TestRename"},
	},
	{
		Name:    "rename-of-emitter",
		Mistake: "the keys of EnqueueFor are those of jobs",
		Edits:   []Edit{{"ops/rename.go", `err = c.renameEmitter(ctx, o.emittedThrough, o.emitted)`, `_ = o.emitted`}},
		Test:    Test{"./ops", "TestRename"},
	},
	{
		Name:    "plan-of-lost-types",
		Mistake: "a build that selects more types gets their events",
		Edits:   []Edit{{"ops/plan.go", `all || len(types) > 0 {`, `false && (all || len(types) > 0) {`}},
		Test:    Test{"./ops", "TestPlan"},
	},
	{
		Name:    "verify-of-what-was-made",
		Mistake: "the rows of an aggregate are compared before they are forgotten",
		Edits: []Edit{{"ops/verify.go", `	there, err := r.rows(ctx)
	if err != nil {
		return err
	}
	handled := r.handle(ctx, positions)
`, `	handled := r.handle(ctx, positions)
	there, err := r.rows(ctx)
	if err != nil {
		return err
	}
`}},
		Test: Test{"./ops", "TestVerifyFindsMistakes"},
	},
	{
		Name:    "compare-of-two-states",
		Mistake: "two consumers that keep up have handled the same events",
		Edits: []Edit{{"ops/compare.go", `		if position > 0 {
`, `		if false {
`}},
		Test: Test{"./ops", "TestCompareIsRefused"},
	},
	{
		Name:    "effects-stay-excepted",
		Mistake: "an exception stays one: the event behind it was not handled when the border was raised",
		Edits:   []Edit{{"internal/consume/work.go", `w.advance.Effects = w.advance.Handles(w.from.Position, w.from.Effects, retried, aside)`, `_, _ = retried, aside`}},
		Test:    Test{"./internal/e2e", "TestRepairBringsExceptionsBack"},
	},
	{
		Name:    "batch-over-border",
		Mistake: "the events of a batch are alike: the first one tells whether they are replayed",
		Edits: []Edit{{"internal/consume/batch/calls.go", `			return n, replay, nil
		}`, `			continue
		}`}},
		Faults: replaying,
	},
	{
		Name:    "split-forgets-effects",
		Mistake: "a new unit has handled nothing",
		Edits:   []Edit{{"internal/progress/sql/split.sql", `paused_at, paused_by, paused_reason, effects, scope, scope_since FROM`, `paused_at, paused_by, paused_reason, '[]'::jsonb, scope, scope_since FROM`}},
		Test:    Test{"./internal/e2e", "TestEffectsOnceOverPartitions"},
	},
	{
		Name:    "merge-has-one-border",
		Mistake: "the parts of a consumer stand at one position when they merge: so they have one border",
		Edits:   []Edit{{rescaleFile, `borders := delivered.Join(had, key)`, `borders := delivered.Join(had[:1], key)`}},
		Test:    Test{"./internal/e2e", "TestEffectsOnceOverPartitions"},
	},
	{
		Name:    "repair-keeps-effects",
		Mistake: "a repair sets the position back, and leaves what the batch took out of the exceptions",
		Edits:   []Edit{{"internal/consume/repair.go", `if planned.Effects != nil {`, `if false && planned.Effects != nil {`}},
		Test:    Test{"./internal/e2e", "TestRepairBringsExceptionsBack"},
	},
	{
		Name:    "replay-of-doubts",
		Mistake: "a replay has all events of the aggregate below the position, also those that are still to come late",
		Edits:   []Edit{{"ops/sql/not_in_doubt.sql", `s.state = 'open' AND s.gap_position`, `s.state = 'never' AND s.gap_position`}},
		Test:    Test{"./ops", "TestReplayOmitsDoubts"},
	},
	{
		Name:    "forgets-at-each-event",
		Mistake: "the mark that the aggregate is to be forgotten is for all its events",
		Edits:   []Edit{{"internal/progress/sql/remove_first_dead_letter.sql", `SET forget = false`, `SET forget = forget`}},
		Test:    Test{"./ops", "TestReplay"},
	},
	{
		Name:    "new-events-overtake-a-replay",
		Mistake: "events that wait for a replay are no dead letters, so nothing waits behind them",
		Edits:   []Edit{{"internal/consume/deadletter.go", `d.agenda.poison == nil && !d.agenda.progress.HasDeadLetters {`, `d.agenda.poison == nil && d.agenda.progress.DeadLetters == 0 {`}},
		Test:    Test{"./ops", "TestReplayKeepsOrder"},
	},
}
