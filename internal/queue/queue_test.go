package queue

import (
	"database/sql"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stage is a queue with workers.
type stage struct {
	*Queue
	t    *testing.T
	d    *pgtest.Database
	me   uuid.UUID
	last int64 // claim
}

func newStage(t *testing.T) *stage {
	t.Helper()
	d := pgtest.Jobs(t)
	n, err := tables.ParseJobs(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{Queue: New(n), t: t, d: d, me: uuid.New()}
	s.register(s.me)
	return s
}

func (s *stage) register(worker uuid.UUID) {
	s.t.Helper()
	s.d.Exec(s.t, `INSERT INTO jobs_workers (worker_id) VALUES ($1::uuid)`, worker.String())
}

func (s *stage) add(jobs ...NewJob) []int64 {
	s.t.Helper()
	ids, err := s.Enqueue(s.t.Context(), s.d.DB, jobs)
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// lanes are the lanes of three priorities, from their beginning.
var lanes = []Lane{{Priority: 1}, {Priority: 5}, {Priority: 9}}

func (s *stage) demand(limit int, kinds ...string) Demand {
	s.last++
	return Demand{Worker: s.me, Claim: s.last, Queue: "default", Lanes: lanes, Kinds: kinds, Limit: limit, Start: limit}
}

// claim claims, and returns the jobs in the order of their ids.
func (s *stage) claim(d Demand) []Job {
	s.t.Helper()
	jobs, err := s.Claim(s.t.Context(), s.d.DB, d)
	if err != nil {
		s.t.Fatal(err)
	}
	slices.SortFunc(jobs, func(a, b Job) int { return int(a.ID - b.ID) })
	return jobs
}

func (s *stage) settle(ends ...End) map[int64]State {
	s.t.Helper()
	settled, err := s.Settle(s.t.Context(), s.d.DB, ends)
	if err != nil {
		s.t.Fatal(err)
	}
	states := map[int64]State{}
	for _, one := range settled {
		states[one.ID] = one.State
	}
	return states
}

// want fails unless the query returns want.
func (s *stage) want(what, want, query string, args ...any) {
	s.t.Helper()
	var got string
	if err := s.d.DB.QueryRowContext(s.t.Context(), query, args...).Scan(&got); err != nil || got != want {
		s.t.Errorf("%s: %q, want %q, %v", what, got, want, err)
	}
}

func idsOf(jobs []Job) (ids []int64) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// Each job gets an id, unless an earlier job or a job of the same list has its key.
func TestEnqueue(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a", Args: json.RawMessage(`{"n":1}`)}, NewJob{Kind: "b", UniqueKey: "k"}, NewJob{Kind: "b", UniqueKey: "k"}, NewJob{Kind: "c", Priority: 9, Queue: "q", Delay: time.Hour.Microseconds()})
	if ids[0] == 0 || ids[1] == 0 || ids[2] != 0 || ids[3] == 0 {
		t.Errorf("the ids are %v", ids)
	}
	if again := s.add(NewJob{Kind: "b", UniqueKey: "k"}, NewJob{Kind: "d"}); again[0] != 0 || again[1] == 0 {
		t.Errorf("again they are %v", again)
	}
	s.want("the first", `a default 5 {"n": 1} 5 available`, `SELECT concat_ws(' ', kind, queue, priority, args, max_attempts, max_resets, state) FROM jobs WHERE id = $1`, ids[0])
	s.want("the last", "c q 9 t", `SELECT concat_ws(' ', kind, queue, priority, run_at > clock_timestamp() + interval '59 minutes') FROM jobs WHERE id = $1`, ids[3])
	if ids := s.add(); len(ids) != 0 {
		t.Errorf("of nothing: %v", ids)
	}
}

// Claim returns due jobs of its kinds, in the order of its lanes, up to its limit. A worker
// without a row, and a paused queue, get none.
func TestClaim(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a", Priority: 9}, NewJob{Kind: "a"}, NewJob{Kind: "b"}, NewJob{Kind: "a", Priority: 1, Delay: time.Hour.Microseconds()},
		NewJob{Kind: "a", Queue: "other"}, NewJob{Kind: "a", Meta: json.RawMessage(`{"m":2}`)})
	stranger := s.demand(10, "a", "b")
	stranger.Worker = uuid.New()
	if jobs := s.claim(stranger); len(jobs) != 0 {
		t.Errorf("a worker without a row gets %v", jobs)
	}
	s.d.Exec(t, `INSERT INTO jobs_queues (name, paused_at) VALUES ('*', clock_timestamp())`)
	if jobs := s.claim(s.demand(10, "a")); len(jobs) != 0 {
		t.Errorf("while all is paused: %v", jobs)
	}
	s.d.Exec(t, `DELETE FROM jobs_queues`)
	d := s.demand(2, "a")
	d.Start = 1
	jobs := s.claim(d)
	if !slices.Equal(idsOf(jobs), []int64{ids[1], ids[5]}) || !jobs[0].Started || jobs[1].Started {
		t.Fatalf("the first two: %+v", jobs)
	}
	if j := jobs[1]; j.Kind != "a" || j.Priority != 5 || string(j.Meta) != `{"m": 2}` || string(j.Args) != `{}` || j.Attempt != 1 || j.Claim != d.Claim || j.RunAt.IsZero() {
		t.Errorf("it is %+v", j)
	}
	behind := s.demand(10, "a", "b")
	behind.Lanes = []Lane{{Priority: 5, At: &jobs[1].RunAt, ID: jobs[1].ID}, {Priority: 9}}
	if jobs := s.claim(behind); !slices.Equal(idsOf(jobs), []int64{ids[0]}) {
		t.Errorf("behind the last one of its lane: %v", idsOf(jobs))
	}
	if jobs := s.claim(s.demand(10, "a", "b")); !slices.Equal(idsOf(jobs), []int64{ids[2]}) {
		t.Errorf("from the beginning: %v", idsOf(jobs))
	}
	found, err := s.InFlight(t.Context(), s.d.DB, s.me, "default")
	if err != nil || len(found) != 4 {
		t.Errorf("the worker has %+v, %v", found, err)
	}
}

// A claim skips a queue with a cap that its transaction has not locked, with or without a
// condition. The cap may have been set after the lock.
func TestClaimSkipsUnlockedCaps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO jobs (kind) SELECT 'a' FROM generate_series(1, 100)`)
	for _, c := range []struct {
		set    []string // the queues with a cap
		locked Caps
		takes  bool
	}{
		{nil, Caps{}, true},
		{[]string{"default"}, Caps{}, false},
		{[]string{"*"}, Caps{}, false},
		{[]string{"default"}, Caps{Own: true}, true},
		{[]string{"default", "*"}, Caps{Own: true}, false},
		{[]string{"*"}, Caps{All: true}, true},
		{[]string{"default", "*"}, Caps{All: true}, false},
		{[]string{"default", "*"}, Caps{Own: true, All: true}, true},
		{[]string{"another"}, Caps{}, true},
	} {
		s.d.Exec(t, `DELETE FROM jobs_queues`)
		for _, name := range c.set {
			s.d.Exec(t, `INSERT INTO jobs_queues (name, max_running) VALUES ($1, 1)`, name)
		}
		for _, condition := range []string{"", "id > 0"} {
			d := s.demand(1, "a")
			d.Caps, d.Condition = c.locked, condition
			if got := s.claim(d); (len(got) == 1) != c.takes {
				t.Errorf("caps of %q, locked %+v, condition %q: %d jobs were claimed", c.set, c.locked, condition, len(got))
			}
		}
	}
}

// Room returns the caps that it has locked.
func TestRoomLocksCaps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, want := range []Caps{{}, {Own: true}, {All: true}, {Own: true, All: true}} {
		s.d.Exec(t, `DELETE FROM jobs_queues`)
		s.d.Exec(t, `INSERT INTO jobs_queues (name, max_running) VALUES ('default', CASE WHEN $1 THEN 1 END), ('*', CASE WHEN $2 THEN 1 END)`, want.Own, want.All)
		if _, got, err := s.Room(t.Context(), s.d.DB, "default", 9); err != nil || got != want {
			t.Errorf("locked %+v, %v, want %+v", got, err, want)
		}
	}
}

// A waiting job is cancelled at once. A running job is asked to end, and is then cancelled
// unless the run succeeds.
func TestCancel(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "b"})
	jobs := s.claim(s.demand(10, "a"))
	for i, want := range []State{"running", "running", "available"} {
		if was, err := s.Cancel(t.Context(), s.d.DB, ids[i]); was != want || err != nil {
			t.Errorf("job %d was %q, %v", i, was, err)
		}
	}
	if was, err := s.Cancel(t.Context(), s.d.DB, ids[2]); was != "" || err != nil {
		t.Errorf("one that has ended was %q, %v", was, err)
	}
	found, err := s.InFlight(t.Context(), s.d.DB, s.me, "default")
	if err != nil || len(found) != 2 || !found[0].Cancel {
		t.Errorf("the worker sees %+v, %v", found, err)
	}
	states := s.settle(End{Run: jobs[0].Run, To: Available, Counts: true, Outcome: Erred}, End{Run: jobs[1].Run, To: Completed})
	if states[ids[0]] != Cancelled || states[ids[1]] != Completed {
		t.Errorf("settled: %v", states)
	}
	s.want("no failure", "0", `SELECT failures::text FROM jobs_history WHERE id = $1`, ids[0])
}

// A prefetched job starts unless it was cancelled or has expired.
func TestStart(t *testing.T) {
	s := newStage(t)
	soon := time.Now().Add(time.Hour)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a", GoodUntil: &soon},
		NewJob{Kind: "a", UniqueKey: "to the start", UntilStart: true}, NewJob{Kind: "a", UniqueKey: "to the end"})
	d := s.demand(10, "a")
	d.Start = 0
	jobs := s.claim(d)
	s.d.Exec(t, `UPDATE jobs SET good_until = clock_timestamp() WHERE id = $1`, ids[2])
	if _, err := s.Cancel(t.Context(), s.d.DB, ids[1]); err != nil {
		t.Fatal(err)
	}
	const keys = `SELECT string_agg(coalesce(unique_key, 'none'), ', ' ORDER BY id) FROM jobs WHERE id >= $1`
	s.want("keys before the start", "to the start, to the end", keys, ids[3])
	started, err := s.Start(t.Context(), s.d.DB, []Run{jobs[0].Run, jobs[1].Run, jobs[2].Run, jobs[3].Run, jobs[4].Run})
	slices.Sort(started)
	if err != nil || !slices.Equal(started, []int64{ids[0], ids[3], ids[4]}) {
		t.Errorf("started: %v, %v", started, err)
	}
	s.want("keys after the start", "none, to the end", keys, ids[3])
}

// deadSQL is a CTE with one dead worker.
const deadSQL = `WITH dead AS (SELECT $1::uuid AS worker_id)`

// The jobs of a dead worker run again. A reset counts only for a job that had started. A job
// that was reset too often fails.
func TestReset(t *testing.T) {
	s := newStage(t)
	none := 0
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a", MaxResets: &none}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "b"})
	d := s.demand(10, "a")
	d.Start = 2
	jobs := s.claim(d)
	other := uuid.New()
	s.register(other)
	living := s.demand(10, "b")
	living.Worker = other
	s.claim(living)
	if _, err := s.Cancel(t.Context(), s.d.DB, ids[3]); err != nil {
		t.Fatal(err)
	}
	if lost, err := s.Lost(t.Context(), s.d.DB, ids[:1], 2, deadSQL, s.me.String()); err != nil || !slices.Equal(lost, ids[1:3]) {
		t.Errorf("lost: %v, %v", lost, err)
	}
	back, ended, err := s.Reset(t.Context(), s.d.DB, ids, deadSQL, s.me.String())
	if back != 2 || ended != 2 || err != nil {
		t.Fatalf("back %d, ended %d, %v", back, ended, err)
	}
	s.want("resets", "1 0", `SELECT string_agg(resets::text, ' ' ORDER BY id) FROM jobs WHERE kind = 'a'`)
	s.want("lost for good", "failed WORKER_LOST", `SELECT state || ' ' || code FROM jobs_history WHERE id = $1`, ids[1])
	s.want("cancelled", "cancelled", `SELECT state FROM jobs_history WHERE id = $1`, ids[3])
	s.want("another's", "running", `SELECT state FROM jobs WHERE id = $1`, ids[4])
	if states := s.settle(End{Run: jobs[0].Run, To: Completed}); len(states) != 0 {
		t.Errorf("a zombie settles %v", states)
	}
	if before, err := s.Judge(t.Context(), s.d.DB, []Run{jobs[0].Run, jobs[1].Run, jobs[3].Run}); len(before) != 0 || err != nil {
		t.Errorf("what was taken away counts as settled: %v, %v", before, err)
	}
}

// A job that no worker claims in time expires.
func TestExpire(t *testing.T) {
	s := newStage(t)
	past := time.Now().Add(-time.Hour)
	ids := s.add(NewJob{Kind: "a", GoodUntil: &past}, NewJob{Kind: "a"})
	if jobs := s.claim(s.demand(10, "a")); !slices.Equal(idsOf(jobs), ids[1:]) {
		t.Errorf("claimed: %v", idsOf(jobs))
	}
	found, err := s.Expirable(t.Context(), s.d.DB, nil, 10)
	if err != nil || !slices.Equal(found, ids[:1]) {
		t.Errorf("found: %v, %v", found, err)
	}
	expired, err := s.Expire(t.Context(), s.d.DB, ids)
	if err != nil || !slices.Equal(expired, ids[:1]) {
		t.Errorf("expired: %v, %v", expired, err)
	}
	s.want("its state", "expired", `SELECT state FROM jobs_history WHERE id = $1`, ids[0])
}

// wholeTable matches a plan that scans one of the large tables.
var wholeTable = regexp.MustCompile(`Seq Scan on jobs(_history|_attempts|_once)?( |$)`)

// The plans are good with the statistics of an empty table, with current ones, and as generic
// plans.
func TestPlans(t *testing.T) {
	s := newStage(t)
	s.d.Exec(t, `ANALYZE jobs`)
	s.d.Exec(t, `INSERT INTO jobs (kind, queue, priority) SELECT 'k' || i % 3, 'q' || i % 5, 1 + i % 9 FROM generate_series(1, 20000) AS i`)
	s.d.Exec(t, `UPDATE jobs SET good_until = clock_timestamp() WHERE id % 4 = 0`)
	s.d.Exec(t, `
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
SELECT id, kind, queue, priority, run_at, args, created_at, 1, 0, 0, 5, 'completed' FROM jobs`)
	s.d.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) SELECT id, 1, 'error' FROM jobs`)
	s.d.Exec(t, `INSERT INTO jobs_once (key, job_id, hash, expires_at) SELECT id, id, '', created_at FROM jobs`)
	conn, err := s.d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	claim := strings.NewReplacer("{limit}", "10", "{condition}", "").Replace(s.Claimer.sql.claim[Caps{}])
	for name, p := range map[string]struct{ types, statement, args string }{
		"claim":       {"text, bigint, text, text, text, bigint, bigint", claim, `'` + s.me.String() + `', 1, 'q1', '[{"p":1,"id":0},{"p":5,"id":0}]', '["k1"]', 10, 10`},
		"start":       {"text, text", s.Claimer.sql.start, `'{1}', '{1}'`},
		"complete":    {"text, text", s.Settler.sql.complete, `'{1}', '{1}'`},
		"completeOne": {"bigint, bigint", s.Settler.sql.completeOne, `1, 1`},
		"verdict":     {"text, text", s.Settler.sql.verdict, `'{1}', '{1}'`},
		"settle":      {"text", s.Settler.sql.settle, `'[{"id":1,"claim":1,"to":"available","counts":false}]'`},
		"late":        {"text", s.Claimer.sql.late, `'{1}'`},
		"look":        {"text, text", s.Claimer.sql.inFlight, `'` + s.me.String() + `', 'q1'`},
		"cancel":      {"bigint", s.Operator.sql.cancel, `7`},
		"due":         {"text, text, text, bigint", s.Claimer.sql.peek, `'q1', '[{"p":1,"id":0},{"p":5,"at":"2020-01-01T00:00:00Z","id":7,"ago":9}]', '["k1"]', 1000000`},
		"above":       {"text, bigint, text, text, text, bigint, bigint", claim, `'` + s.me.String() + `', 1, 'q1', '[{"p":5,"at":"2020-01-01T00:00:00Z","id":7,"ago":9}]', '["k1"]', 10, 10`},
		"wouldTake":   {"text, bigint, text, text, text, bigint, bigint", strings.NewReplacer("{limit}", "10", "{condition}", "").Replace(s.Claimer.sql.due), `'` + s.me.String() + `', 1, 'q1', '[{"p":1,"id":0},{"p":5,"id":0}]', '["k1"]', 10, 10`},
		"unknown":     {"text, text", s.Leader.sql.unknown, `'q1', '["k1"]'`},
		"unserved":    {"", s.Leader.sql.unserved, ""},
		"expirable":   {"text", strings.ReplaceAll(s.Leader.sql.expirable, "{limit}", "896"), `'{7}'`},
		"expire":      {"text", s.Leader.sql.expire, `'{1,2,3}'`},
		"lost":        {"uuid, text", deadSQL + strings.NewReplacer("{limit}", "896", "{ids}", "$2").Replace(s.Leader.sql.lost), `'` + s.me.String() + `', '{7}'`},
		"reset":       {"uuid, text", deadSQL + strings.ReplaceAll(s.Leader.sql.reset, "{ids}", "$2"), `'` + s.me.String() + `', '{1,2,3}'`},
		"claimers":    {"", s.Leader.sql.claimers, ""},
		"forgettable": {"text", strings.ReplaceAll(s.Leader.sql.forgettable, "{limit}", "896"), `'["1"]'`},
		"forget":      {"text", s.Leader.sql.forget, `'["1","2"]'`},
		"retained":    {"", s.Leader.sql.retained, ""},
		"retainable":  {"bigint, text, text, bigint, text", strings.NewReplacer("{limit}", "896", "{ids}", "$5").Replace(s.Leader.sql.retainable), `1000000, 'q1', '2020-01-01', 7, '{7}'`},
		"remove":      {"text", s.Leader.sql.remove, `'{1,2}'`},
	} {
		all := pgtest.ExplainGeneric(t, conn, p.types, p.statement, p.args)
		if cost := pgtest.Cost(t, all); cost > 100_000 { // jit_above_cost
			t.Errorf("%s costs %g, and the server would compile it:\n%s", name, cost, all)
		}
		// The index returns the rows in the required order, so that the scan ends early.
		inOrder := slices.Contains([]string{"claim", "above", "due", "wouldTake", "retained"}, name)
		if wholeTable.MatchString(all) || inOrder && (strings.Contains(all, "Bitmap") || strings.Contains(all, "Sort")) {
			t.Errorf("%s:\n%s", name, all)
		}
	}
}

// Due returns the jobs that the claim then takes. Only and But restrict both.
func TestDueIsWhatAClaimTakes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var all []NewJob
	for i := range 30 {
		all = append(all, NewJob{Kind: string(rune('a' + i%3)), Priority: 1 + 4*(i/3%3)})
	}
	ids := s.add(all...)
	for _, d := range []Demand{
		s.demand(4, "a", "b").But(ids[:6]),
		s.demand(9, "a", "b").Only(ids[3:12], 2),
		{Worker: s.me, Claim: 77, Queue: "default", Lanes: lanes, Kinds: []string{"b", "c"}, Limit: 5, Condition: "id > $8", Args: []any{ids[9]}},
		Demand{Worker: s.me, Claim: 78, Queue: "default", Lanes: lanes, Kinds: []string{"c"}, Limit: 5, Condition: "id > $8 OR id < $9", Args: []any{ids[9], ids[2]}}.But(ids[20:]),
	} {
		due, err := s.Due(t.Context(), s.d.DB, d)
		if err != nil {
			t.Fatal(err)
		}
		var taken []int64
		for _, j := range s.claim(d) {
			taken = append(taken, j.ID)
		}
		slices.Sort(due)
		if len(taken) == 0 || !slices.Equal(due, taken) {
			t.Errorf("%+v: due are %v, taken were %v", d, due, taken)
		}
	}
}

// A claim waits for another claim of the same capped queue, whatever lock_timeout the role has.
func TestRoomWaitsBeyondLockTimeout(t *testing.T) {
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO jobs_queues (name, max_running) VALUES ('default', 1)`)
	begin := func(db *sql.DB) *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		return tx
	}
	first, second := begin(s.d.DB), begin(s.d.OpenSet(t, "lock_timeout", "100"))
	if room, _, err := s.Room(t.Context(), first, "default", 5); err != nil || room != 1 {
		t.Fatalf("room for %d, %v", room, err)
	}
	waits := make(chan error, 1)
	go func() {
		_, _, err := s.Room(t.Context(), second, "default", 5)
		waits <- err
	}()
	pgtest.AwaitBlockedFor(t, s.d.DB, 300*time.Millisecond)
	if err := first.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
}
