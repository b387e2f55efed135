package progress_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// auditRow is a row of the audit.
type auditRow struct {
	ID, First, Last, Missing int64
	State                    string
	Seen, Created            time.Time
	Closed                   sql.NullTime
	Transaction              string
}

// auditHistory is the audit of a consumer, and facts that the audit does not show.
type auditHistory struct {
	progresstest.Guarded
	t      *rapid.T
	at     int64
	resets int
	plain  map[int64]bool    // by id: written by a batch that passed the positions as void
	pass   map[int64]int     // by id: number of resets before the first pass of its positions
	seen   map[int64]int     // by first_seen_at: number of resets before
	void   map[[2]int64]bool // by pass and position: passed as void
	others map[[2]int64]bool // by pass and position: a row that is not plain began there
	newest int64
}

func (h *auditHistory) rows() []auditRow {
	rows, err := h.DB.QueryContext(context.Background(), `
SELECT id, gap_position, gap_end, missing, state, first_seen_at, created_at, closed_at, xmin::text
FROM consumer_gap_skips WHERE consumer_name = 'c' ORDER BY id`)
	h.must(err)
	defer rows.Close()
	var all []auditRow
	for rows.Next() {
		var a auditRow
		h.must(rows.Scan(&a.ID, &a.First, &a.Last, &a.Missing, &a.State, &a.Seen, &a.Created, &a.Closed, &a.Transaction))
		all = append(all, a)
	}
	h.must(rows.Err())
	return all
}

func (h *auditHistory) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// note records the rows that were written since the last call.
func (h *auditHistory) note(plain func(auditRow) bool) {
	for _, r := range h.rows() {
		if r.ID <= h.newest {
			continue
		}
		if _, ok := h.seen[r.Seen.UnixMicro()]; !ok {
			h.seen[r.Seen.UnixMicro()] = h.resets
		}
		h.plain[r.ID], h.pass[r.ID], h.newest = plain(r), h.seen[r.Seen.UnixMicro()], r.ID
		if !h.plain[r.ID] {
			h.others[[2]int64{int64(h.pass[r.ID]), r.First}] = true
		}
		if h.plain[r.ID] && (!r.Created.Equal(r.Seen) || !r.Closed.Time.Equal(r.Seen)) {
			h.t.Fatalf("the times of %+v differ", r)
		}
	}
}

// batch passes some positions, and sometimes ends a doubt.
func (h *auditHistory) batch() {
	p, err := h.Load(context.Background(), h.DB, "c")
	h.must(err)
	var void, doubt *progress.Mark
	for _, kind := range rapid.SliceOfN(rapid.SampledFrom([]string{"event", "void", "void", "doubt"}), 1, 9).Draw(h.t, "positions") {
		h.at++
		switch {
		case kind == "void" && void == nil:
			void = &progress.Mark{Range: store.Range{First: h.at, Last: h.at}, Missing: 1, State: progress.Void}
		case kind == "void":
			void.Last, void.Missing = h.at, void.Missing+1
		case kind == "doubt" && doubt == nil:
			doubt = &progress.Mark{Range: store.Range{First: h.at, Last: h.at}, Missing: 1, State: progress.Open}
		}
		h.void[[2]int64{int64(h.resets), h.at}] = kind == "void"
	}
	a := progress.Advance{Token: h.Token, To: h.at, Head: h.at + 100}
	for _, m := range []*progress.Mark{void, doubt} {
		if m != nil {
			a.Marks = append(a.Marks, *m)
		}
	}
	if len(p.Open) > 0 && rapid.Bool().Draw(h.t, "a doubt ends") {
		o := p.Open[0]
		a.Gone = []int64{o.ID}
		state := rapid.SampledFrom([]progress.MarkState{progress.Void, progress.Late}).Draw(h.t, "as")
		a.Marks = append(a.Marks, progress.Mark{Range: o.Range, Missing: o.Count(), State: state, Seen: &o.Seen})
	}
	tx, err := h.DB.BeginTx(context.Background(), nil)
	h.must(err)
	defer func() { _ = tx.Rollback() }()
	if _, ok, err := h.Guard(context.Background(), tx, "c", p, a); err != nil || !ok {
		h.t.Fatal(ok, err)
	}
	h.must(tx.Commit())
	h.note(func(r auditRow) bool { return r.State == "void" && r.First > p.Position })
	if void != nil && rapid.IntRange(0, 5).Draw(h.t, "slowly by an older program") == 0 {
		var id int64
		h.must(h.DB.QueryRow(`
UPDATE consumer_gap_skips SET created_at = first_seen_at + interval '103 microseconds', closed_at = first_seen_at + interval '104 microseconds'
WHERE id = (SELECT max(id) FROM consumer_gap_skips WHERE gap_position = $1) RETURNING id`, void.First).Scan(&id))
		h.plain[id], h.others[[2]int64{int64(h.resets), void.First}] = false, true
	}
}

// exec runs statements of an operator.
func (h *auditHistory) exec(statement string, args ...any) {
	_, err := h.DB.ExecContext(context.Background(), statement, args...)
	h.must(err)
	h.note(func(auditRow) bool { return false })
}

func (h *auditHistory) reset() {
	to := rapid.Int64Range(0, h.at+5).Draw(h.t, "reset to")
	h.exec(`UPDATE consumer_checkpoints SET last_position = $1::bigint, revision = revision + 1 WHERE consumer_name = 'c'`, to)
	h.exec(`DELETE FROM consumer_gap_skips WHERE state = 'open' AND gap_position > $1::bigint`, to)
	if to > h.at {
		h.exec(`INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, closed_at)
			SELECT 'c', $1::uuid, $2::bigint, $3::bigint, 1, 'void', 1, 1, clock_timestamp(), clock_timestamp()`, uuid.Nil.String(), h.at+1, to)
	}
	h.exec(`INSERT INTO consumer_operations (consumer_name, operation, operator, reason) VALUES ('c', 'reset', 'alice', 'a test')`)
	h.at, h.resets = to, h.resets+1
}

// rescale gives the keys to other units for a while, which move on.
func (h *auditHistory) rescale() {
	h.exec(`INSERT INTO consumer_operations (consumer_name, operation, operator, reason) VALUES ('c', $1::text, 'a worker', 'a test')`,
		rapid.SampledFrom([]string{"split", "merge"}).Draw(h.t, "rescale"))
	h.at, h.resets = rapid.Int64Range(0, h.at+5).Draw(h.t, "merged at"), h.resets+1
	h.exec(`UPDATE consumer_checkpoints SET last_position = $1::bigint, revision = revision + 1 WHERE consumer_name = 'c'`, h.at)
	h.exec(`DELETE FROM consumer_gap_skips WHERE state = 'open'`) // the other units have these
}

// compact compacts the audit and checks that no fact is lost.
func (h *auditHistory) compact(after int64) int64 {
	before := h.rows()
	kept, chunk := rapid.IntRange(0, 3).Draw(h.t, "kept"), rapid.IntRange(2, 9).Draw(h.t, "chunk")
	for more := true; more; {
		var err error
		after, more, err = h.Compact(context.Background(), h.DB, "c", after, kept, chunk)
		h.must(err)
	}
	now := h.rows()
	var latest string
	h.must(h.DB.QueryRow(`SELECT xmin::text FROM consumer_checkpoints WHERE consumer_name = 'c'`).Scan(&latest))
	missing := map[int]int64{}
	for i, r := range before {
		if i >= len(before)-kept || !h.plain[r.ID] || r.Transaction == latest {
			if !slices.Contains(now, r) {
				h.t.Fatalf("row %+v has changed, the rows are %+v", r, now)
			}
		}
		if h.plain[r.ID] {
			missing[h.pass[r.ID]] += r.Missing
			if !slices.ContainsFunc(now, func(n auditRow) bool {
				return h.plain[n.ID] && h.pass[n.ID] == h.pass[r.ID] && n.First <= r.First && n.Last >= r.Last && n.Missing >= r.Missing &&
					!n.Seen.After(r.Seen) && !n.Closed.Time.Before(r.Closed.Time)
			}) {
				h.t.Fatalf("no row covers %+v, the rows are %+v", r, now)
			}
		}
	}
	var previous *auditRow
	for i, r := range now {
		if !h.plain[r.ID] {
			continue
		}
		missing[h.pass[r.ID]] -= r.Missing
		h.exact(r, before, now)
		if previous != nil && h.pass[previous.ID] == h.pass[r.ID] {
			if previous.Last >= r.First {
				h.t.Fatalf("%+v and %+v overlap", *previous, r)
			}
			if i < len(now)-kept && r.Transaction != latest && !h.otherBegan(*previous, r) {
				h.t.Fatalf("%+v and %+v are not merged", *previous, r)
			}
		}
		previous = &r
	}
	for pass, n := range missing {
		if n != 0 {
			h.t.Fatalf("%d void positions of pass %d are lost, were %+v, are %+v", n, pass, before, now)
		}
	}
	return after
}

// exact checks that a row counts the void positions of its range. It also checks that
// compaction has not merged rows across another row.
func (h *auditHistory) exact(r auditRow, before, now []auditRow) {
	var void int64
	for at := r.First; at <= r.Last; at++ {
		if h.void[[2]int64{int64(h.pass[r.ID]), at}] {
			void++
		}
	}
	if void != r.Missing {
		h.t.Fatalf("%d void positions are in the range of %+v", void, r)
	}
	for _, o := range now {
		if h.plain[o.ID] || h.pass[o.ID] != h.pass[r.ID] || o.First < r.First || o.First > r.Last {
			continue
		}
		if !slices.ContainsFunc(before, func(b auditRow) bool {
			return h.plain[b.ID] && h.pass[b.ID] == h.pass[r.ID] && b.First <= o.First && b.Last >= o.First
		}) {
			h.t.Fatalf("%+v covers %+v, were %+v", r, o, before)
		}
	}
}

// otherBegan reports whether a row that is not plain has begun between two rows.
func (h *auditHistory) otherBegan(a, b auditRow) bool {
	for at := a.First; at <= b.First; at++ {
		if h.others[[2]int64{int64(h.pass[a.ID]), at}] {
			return true
		}
	}
	return false
}

// For every history, compaction loses no position, no reason and no count. It leaves rows that
// are not plain, and rows that a repair may still delete.
func TestCompactionKeepsTheAudit(t *testing.T) {
	tier.Checks(t, 40, 200)
	g := progresstest.New(t)
	g.Exec(t, `SELECT setval('events_global_position_seq', 1000000)`)
	var err error
	if g.Token, err = g.Incarnation(t.Context(), g.DB); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		h := &auditHistory{Guarded: g, t: t, plain: map[int64]bool{}, pass: map[int64]int{}, seen: map[int64]int{}, void: map[[2]int64]bool{}, others: map[[2]int64]bool{}}
		h.exec(`DELETE FROM consumer_gap_skips`)
		h.exec(`DELETE FROM consumer_operations`)
		h.exec(`UPDATE consumer_checkpoints SET last_position = 0, revision = revision + 1 WHERE consumer_name = 'c'`)
		after := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 13).Draw(t, "step") {
			case 0:
				h.reset()
			case 1:
				after = h.compact(after)
			case 2:
				h.rescale()
			default:
				h.batch()
			}
		}
		h.compact(after)
	})
}

// Nothing is lost or counted twice if other statements delete rows at the same time. Such a
// statement is another compaction, or a clean-up of old rows.
func TestCompactionBesideConcurrentDeletes(t *testing.T) {
	g := progresstest.New(t)
	const days = `ARRAY[5, 4, 3, 0]`
	g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
		SELECT 'c', gen_random_uuid(), 10 * i, 10 * i + 5, 3, 'void', 1, 1, at, at, at
		FROM unnest(`+days+`) WITH ORDINALITY AS d(age, i), LATERAL (SELECT clock_timestamp() - age * interval '1 day' AS at) AS t`)
	tx := g.Begin(t)
	if _, _, err := g.Compact(t.Context(), tx, "c", 0, 0, 10_000); err != nil {
		t.Fatal(err)
	}
	others := make(chan error, 2)
	go func() {
		_, err := g.Clean(t.Context(), g.DB, 24*time.Hour)
		others <- err
	}()
	go func() {
		_, _, err := g.Compact(t.Context(), g.DB, "c", 0, 0, 10_000)
		others <- err
	}()
	waiting := 0
	for deadline := time.Now().Add(pgtest.Patience); waiting < 2; {
		if err := g.DB.QueryRow(`SELECT count(*) FROM pg_locks WHERE ` + pgtest.Here + ` AND NOT granted`).Scan(&waiting); err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of 2 wait for the compaction, %v", waiting, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-others; err != nil {
			t.Fatal(err)
		}
	}
	var rows, first, last, missing int64
	if err := g.DB.QueryRow(`SELECT count(*), min(gap_position), max(gap_end), sum(missing) FROM consumer_gap_skips`).Scan(&rows, &first, &last, &missing); err != nil {
		t.Fatal(err)
	}
	if rows != 1 || first != 10 || last != 45 || missing != 12 {
		t.Errorf("%d rows from %d to %d count %d void positions, want one from 10 to 45 with 12", rows, first, last, missing)
	}
}
