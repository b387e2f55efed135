package mutants

// frontierMutants are about how far it is safe to read.
var frontierMutants = []Mutant{
	{
		Name:    "head",
		Mistake: "the frontier jumps to the highest visible position, for positions are handed out in order",
		Edits:   []Edit{{"frontier/proof.go", `run.First > m.safe+1`, `false`}},
	},
	{
		Name:    "locks-first",
		Mistake: "the locks are scanned before the tail is read: the fence gets the head of a tail that is younger than its holders",
		Edits: []Edit{{"frontier/machine.go", `m.head = max(m.head, r.runs[n-1].Last)`, `m.head = max(m.head, r.runs[n-1].Last)
		m.open(now)`}},
		Faults: calm + ",rollback=3,savepoint=8",
	},
	{
		Name:    "one-transaction",
		Mistake: "the statements of the frontier share a transaction, to see one consistent picture; pg_stat_activity is frozen in it",
		Edits: []Edit{
			{"frontier/session.go", `r, err := s.scanLocks(ctx)`, `_, _ = s.conn.ExecContext(ctx, "BEGIN")
		r, err := s.scanLocks(ctx)`},
			{"frontier/session.go", `err := s.exec(ctx, "raise the settled row"`, `_, _ = s.conn.ExecContext(ctx, "COMMIT")
		err := s.exec(ctx, "raise the settled row"`},
		},
		Faults: calm + ",redraw=8,delay=4",
		Draws:  "open gaps skip-stale",
	},
	{
		Name:    "prepared",
		Mistake: "holders without a pid are ignored: there is no process behind them",
		Edits:   []Edit{{"frontier/sql/scan.sql", `WHERE l.locktype = 'relation'`, `WHERE l.locktype = 'relation' AND l.pid IS NOT NULL`}},
		Faults:  "prepare=2",
	},
	{
		Name:    "start-time",
		Mistake: "an incarnation of the server is told by its start time; but that stays when a backend dies and the server recovers",
		Edits: []Edit{
			{"internal/incarnation/incarnation.go", "SELECT token::text || ' ' || ", "SELECT "},
			{"internal/incarnation/incarnation.go", "\n	FROM ` + token.SQL() + ` WHERE database = ` + database + `)`", " WHERE ` + database + ` > 0)`"},
		},
		Faults: crashes,
	},
	{
		Name:    "any-fence",
		Mistake: "whatever is still missing when a fence closes is void, also what an older fence has left in doubt: this one never waited for the stale holders",
		Edits: []Edit{
			{"frontier/fence.go", `m.advance(f.h)`, `m.doubts = doubts{}
			m.advance(f.h)`},
			{"frontier/fence.go", `for _, gap := range subtract(`, `m.doubts = doubts{}
		for _, gap := range subtract(`},
		},
		Faults: calm + ",delay=6,redraw=6",
		Draws:  "open gaps skip-stale",
	},
}

// serverMutants are about answers of another server than the worker knows.
var serverMutants = []Mutant{
	{
		Name:    "token-alone",
		Mistake: "an incarnation of the server is told by its token; but a cold copy that is put back brings the token along",
		Edits:   []Edit{{"internal/incarnation/incarnation.go", " (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint::text`", " '0'`"}},
		Faults:  calm + ",restore=6,delay=6,redraw=6",
	},
	{
		Name:    "unproven",
		Mistake: "a read does not prove the incarnation that answers it: the connection led to the primary when it was made",
		Edits: []Edit{{"store/postgres/sql.go", "return `(SELECT 1 / count(*) FROM (SELECT 1) AS server WHERE ` + incarnation + ` = $` + strconv.Itoa(n) + `::text) = 1`",
			"return `$` + strconv.Itoa(n) + `::text IS NOT NULL`"}},
		Test: Test{"./store/postgres", "TestEveryBoundReadProvesItsIncarnation"},
	},
	{
		Name:    "misled-kept",
		Mistake: "a connection that leads to another server goes back to the pool, as after any error",
		Edits:   []Edit{{"internal/consume/bounds.go", `if gone || ours {`, `if gone {`}},
		Test:    Test{"./internal/consume", "TestGiveClosesConnectionToAnotherServer"},
	},
}

// cacheMutants are about the end of the log, which the frontier reads for all
// consumers.
var cacheMutants = []Mutant{
	{
		Name:    "together",
		Mistake: "the end of the log and the locks are read together, to save a statement: what commits between the two is seen in neither",
		Edits: []Edit{{"frontier/session.go", `r, err := s.scanLocks(ctx)
		if err == nil {
			m.onScan(s.now(), r)`, `after := m.cache.upTo
		events, more, err := s.readRows(ctx, after, cachedEvents)
		if err != nil {
			return err
		}
		r, err := s.scanLocks(ctx)
		if err == nil {
			m.onScan(s.now(), r)
			if !more && m.cache.upTo == after && after < m.safe {
				m.cache.add(events[:len(events)-len(above(events, m.safe))], m.safe)
				m.publish()
			}`}},
		Faults: calm + ",rollback=6,savepoint=8",
	},
	{
		Name:     "cache-watching",
		Mistake:  "a consumer with open ranges is served from the tail cache as well: they are read apart",
		Edits:    []Edit{{"internal/reader/reader.go", `; ok && !watching {`, `; ok {`}},
		Faults:   "delay=3",
		Draws:    "open gaps skip-stale",
		Harmless: "late events are read after that, in a later snapshot than the tail cache's rows, so they show wherever their successors do",
	},
	{
		Name:    "cache-doubts",
		Mistake: "the tail cache is kept whatever happens, also while positions in it are in doubt: a consumer that reads it knows the doubts",
		Edits:   []Edit{{"frontier/tail_cache.go", `m.cache.asked <= 0 || len(m.doubts.all) > 0 || m.safe`, `m.safe`}},
		Faults:  "reset=5,kill-batch=4,delay=3,idle=0,redraw=0",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "cache-crash",
		Mistake: "the tail cache outlasts the frontier's session, and with it a crash of the server",
		Edits: []Edit{
			{"frontier/frontier.go", "type Frontier struct {", "type Frontier struct {\n\tkept tailCache"},
			{"frontier/session.go", "return &session{", "s := &session{"},
			{"frontier/session.go", "}, jitter),\n\t}, nil", "}, jitter),\n\t}\n\ts.machine.cache = f.kept\n\treturn s, nil"},
			{"frontier/session.go", "func (s *session) close() {", "func (s *session) close() {\n\ts.f.kept = s.machine.cache;"},
			{"frontier/machine.go", "m.raisedAt = now\n\tm.cache.restart(m.safe)", "m.raisedAt = now\n\tif m.cache.upTo == 0 {\n\t\tm.cache.restart(m.safe)\n\t}"},
		},
		Faults: crashesAtHead,
	},
}

// readerMutants are about pages that consumers share.
var readerMutants = []Mutant{
	{
		Name:    "kept-pages",
		Mistake: "what was read ahead is final, so it is for everybody who stands before it, in whichever incarnation",
		Edits:   []Edit{{"internal/reader/ahead.go", `s != nil && s.v.Token == token`, `s != nil`}},
		Test:    Test{"./internal/reader", "TestPagesOfAnotherIncarnation"},
	},
	{
		Name:    "shared-bytes",
		Mistake: "consumers share the bytes of a payload: it is theirs to read",
		Edits:   []Edit{{"internal/reader/ahead.go", `r.window.wanted(p.Positions.Through), `, `false, `}},
		Test:    Test{"./internal/reader", "TestFollowersShareReads"},
	},
	{
		Name:    "read-into-doubt",
		Mistake: "what is read ahead goes up to Safe: who takes it knows the doubts",
		Edits:   []Edit{{"internal/reader/background.go", `len(doubts) > 0`, `false`}},
		Test:    Test{"./internal/reader", "TestReadAheadEndsAtDoubts"},
	},
}

// narrowingMutants are about what an idle transaction can own at most.
var narrowingMutants = []Mutant{
	{
		Name:    "head-as-L",
		Mistake: "an idle holder is narrowed to the highest visible position instead of the sequence's last value",
		Edits:   []Edit{{"frontier/fence.go", `h.last, h.haveLast = last, true`, `h.last, h.haveLast = m.head, true`}},
		Faults:  calm + ",delay=8,redraw=4",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "early-L",
		Mistake: "an idle holder is narrowed to a last value of the sequence that was read before the scan which showed it idle",
		Edits: []Edit{
			{"frontier/proof.go", "type proof struct {", "type proof struct {\n\tearly int64"},
			{"frontier/fence.go", "func (m *proof) narrow(last int64) {", `func (m *proof) narrow(last int64) {
	early := m.early
	if m.early = last; early > 0 {
		last = early
	}`},
		},
		Faults: calm + ",redraw=10",
		Draws:  "open gaps skip-stale",
	},
	{
		Name:    "cached-L",
		Mistake: "the last value that was read for an idle holder is kept when the holder has run something since",
		Edits:   []Edit{{"frontier/fence.go", `h.haveLast, h.narrowed = false, false`, `h.narrowed = false`}},
		Faults:  calm + ",redraw=8",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "prepared-L",
		Mistake: "the last value that was read while a transaction sat idle is kept when it is prepared: it rests all the same",
		Edits:   []Edit{{"frontier/fence.go", `s.Rest == h.Rest`, `(s.Rest == h.Rest || s.PID == 0)`}},
		Faults:  calm + ",prepare=10",
		Draws:   "open gaps skip-stale",
	},
	{
		Name:    "aborted-over",
		Mistake: "an aborted transaction is taken for one that never draws again; ROLLBACK TO SAVEPOINT revives it",
		Edits:   []Edit{{"frontier/sql/holders_as.sql", `WHEN h.pid IS NULL THEN 'prepared'`, `WHEN h.pid IS NULL OR a.state = 'idle in transaction (aborted)' THEN 'prepared'`}},
		Faults:  calm + ",redraw=10",
		Draws:   "open gaps skip-stale",
	},
}
