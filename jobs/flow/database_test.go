package flow

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// testbed is a database on which the statements run without a worker.
type testbed struct {
	*Client
	t testing.TB
	d *pgtest.Database
}

func newTestbed(t testing.TB) *testbed {
	t.Helper()
	d := pgtest.Jobs(t)
	d.DB.SetMaxIdleConns(20)
	return &testbed{NewClient(jobs.NewClient(d.DB)), t, d}
}

// newSpreadTestbed makes a testbed whose statements add at most `most` steps or jobs of lists. In the
// quick tier it is a tenth of the real number.
func newSpreadTestbed(t testing.TB) (b *testbed, most int) {
	t.Helper()
	b, most = newTestbed(t), tier.Amount(mostSpread/10, mostSpread)
	b.sql = newStatements(b.core.Tables, most)
	return b, most
}

// fatal is a test, or a case of rapid.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

func must[T any](v T, err error) func(t fatal) T {
	return func(t fatal) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v", err)
		}
		return v
	}
}

// begin starts a run of a definition.
func (b *testbed) begin(t fatal, d *definition) int64 {
	t.Helper()
	return must(b.start(context.Background(), b.d.DB, d.name, d.compile(), sql.NullString{}))(t).Run
}

// end moves the jobs of steps to the history, as the end of a job does.
func (b *testbed) end(t fatal, run int64, outcomes map[stepID]outcome, steps ...stepID) {
	t.Helper()
	for _, id := range steps {
		o := outcomes[id-idOf(run, 0, 0)]
		state, code := o.state, sql.NullString{}
		if state == "skipped" {
			state, code = "cancelled", sql.NullString{String: jobflow.CodeSkipped, Valid: true}
		}
		n := must(b.d.DB.Exec(`
WITH gone AS (DELETE FROM jobs WHERE id = (SELECT job_id FROM jobs_flow_steps WHERE id = $1 AND state = 'enqueued') RETURNING *)
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, meta, created_at, attempt, failures, resets, max_resets, state, code, result)
SELECT id, kind, queue, priority, run_at, args, meta, created_at, attempt, failures, resets, max_resets, $2::text, $3::text, $4::text::jsonb FROM gone`,
			int64(id), state, code, sql.NullString{String: o.result, Valid: o.result != ""}))(t)
		if rows, err := n.RowsAffected(); err != nil || rows != 1 {
			t.Fatalf("step %d, job %d has no job to end: %v", id.n(), id.item(), err)
		}
	}
}

// enqueuedOf returns the steps of a run that have a job.
func (b *testbed) enqueuedOf(t fatal, run int64) []stepID {
	t.Helper()
	return must(pgdriver.QueryAll(context.Background(), b.d.DB, func(r *sql.Rows) (id stepID, err error) { return id, r.Scan(&id) },
		`SELECT s.id FROM jobs_flow_steps AS s JOIN jobs AS j ON j.id = s.job_id WHERE s.id >> 30 = $1 AND s.state = 'enqueued' AND (j.meta->>'flow_step')::bigint = s.id ORDER BY s.id`, run))(t)
}

// advance reports ended steps, also steps whose runs others have locked for a moment.
func (b *testbed) advance(ctx context.Context, ids []int64) error {
	for len(ids) > 0 {
		r := b.sql.round(b.d.DB)
		if err := r.advance(ctx, ids); err != nil {
			return err
		}
		ids = nil
		for _, m := range r.held {
			if m.state == "enqueued" {
				ids = append(ids, m.id)
			}
		}
	}
	return nil
}

// report reports ended steps, twice at once.
func (b *testbed) report(t fatal, steps []stepID) {
	t.Helper()
	ids := make([]int64, len(steps))
	for i, id := range steps {
		ids[i] = int64(id)
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() { errs[i] = b.advance(context.Background(), shuffled(ids)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// sweepAll sweeps as a worker does that has the turn.
func (b *testbed) sweepAll(t fatal) {
	t.Helper()
	ctx := context.Background()
	conn := must(b.d.DB.Conn(ctx))(t)
	defer conn.Close()
	for after, more := int64(0), true; more; more = after > 0 {
		r := b.sql.round(conn)
		after = must(r.sweepPage(ctx, conn, after))(t).last
		for len(r.more) > 0 { // the next rounds
			left := r.more
			r.more = nil
			if err := r.proceed(ctx, left); err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
}

// endsOf returns the steps of a run as stored in the tables.
func (b *testbed) endsOf(t fatal, run int64) map[stepID]end {
	t.Helper()
	all := map[stepID]end{}
	for _, s := range must(pgdriver.QueryAll(context.Background(), b.d.DB, func(r *sql.Rows) (s endedStep, err error) {
		var edges string
		return s, r.Scan(&s.id, &s.name, &s.state, &s.mapped, &s.quorum, &s.leaf, &s.failed, &s.good, &edges)
	}, b.sql.edges, run))(t) {
		all[s.id-idOf(run, 0, 0)] = end{state: s.state, failed: s.failed, good: s.good}
	}
	return all
}

// play ends the jobs of a run in a drawn order. It reports each end and processes what follows, or
// leaves this to the sweep.
func (b *testbed) play(t *rapid.T, run int64, d drawn) {
	for {
		enqueued := b.enqueuedOf(t, run)
		if len(enqueued) == 0 {
			b.sweepAll(t)
			if len(b.enqueuedOf(t, run)) == 0 {
				return
			}
			continue
		}
		var next []stepID
		for _, id := range enqueued {
			if rapid.Bool().Draw(t, "ends") {
				next = append(next, id)
			}
		}
		b.end(t, run, d.jobs, next...)
		switch rapid.IntRange(0, 4).Draw(t, "is reported") {
		case 0: // no report
		case 1: // the reporter dies before it processes what follows
			must(pgdriver.QueryAll(context.Background(), b.d.DB, scanMoved, b.sql.advance, list(next)))(t)
		default:
			b.report(t, next)
		}
	}
}

func (b *testbed) check(t *rapid.T, run int64, want map[stepID]end, state string) {
	t.Helper()
	sameEnds(t, b.endsOf(t, run), want)
	var got string
	var unfinished, left, deadlocks int
	err := b.d.DB.QueryRow(`
SELECT state, unfinished, (SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 = $1 AND finished_at IS NULL) + (SELECT count(*) FROM jobs WHERE (meta->>'flow_run')::bigint = $1),
	(SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())
FROM jobs_flow_runs WHERE id = $1`, run).Scan(&got, &unfinished, &left, &deadlocks)
	if err != nil || got != state || unfinished != 0 || left != 0 || deadlocks != 0 {
		t.Errorf("the run has %s, want %s; %d unfinished, %d steps and jobs are left, %d deadlocks, %v", got, state, unfinished, left, deadlocks, err)
	}
}

// The tables reach the state of the model. The order in which jobs end and are reported does not
// matter, also after a retry.
//
//	go test -run TestDatabaseAgreesWithModel ./jobs/flow -rapid.checks=5000 -timeout 1h
func TestDatabaseAgreesWithModel(t *testing.T) {
	tier.Checks(t, 30, 1000)
	b := newTestbed(t)
	rapid.Check(t, func(t *rapid.T) {
		d := drawFlow(t, 7)
		run := b.begin(t, &d.def)
		b.play(t, run, d)
		want, state := d.evaluate(nil)
		b.check(t, run, want, state)
		kept := b.endsOf(t, run)
		for id := range kept { // with the results, which edges need
			e := kept[id]
			e.result = want[id].result
			kept[id] = e
		}
		var from []string
		for _, s := range d.def.nodes {
			if rapid.IntRange(0, 4).Draw(t, "from") == 0 {
				from = append(from, s.name)
			}
		}
		if err := b.Retry(context.Background(), nil, run, from...); err != nil {
			return // TestRetry covers refused retries
		}
		rows := must(pgdriver.QueryAll(context.Background(), b.d.DB, func(r *sql.Rows) (id stepID, err error) { return id, r.Scan(&id) },
			`SELECT id FROM jobs_flow_steps WHERE id >> 30 = $1 AND finished_at IS NOT NULL`, run))(t)
		// Steps that begin again at once and end without a job are reported by now. So the model of
		// the retry decides which ends stay.
		m := newMachine(d)
		m.all = want
		plan := must(resume(m.endedSteps(), false, from))(t)
		for _, id := range plan.forget {
			maps.DeleteFunc(kept, func(k stepID, _ end) bool { return k.n() == id.n() })
		}
		for _, a := range plan.again {
			delete(kept, a.ID)
		}
		for id := range kept {
			if !slices.Contains(rows, id+idOf(run, 0, 0)) {
				t.Errorf("step %d, job %d should have stayed", id.n(), id.item())
			}
		}
		for _, id := range slices.Sorted(maps.Keys(d.jobs)) {
			if _, makes := d.lists[id.n()]; rapid.Bool().Draw(t, "otherwise") && !makes {
				d.jobs[id] = drawOutcome(t, nil, -1)
			}
		}
		b.play(t, run, d)
		want, state = d.evaluate(kept)
		b.check(t, run, want, state)
	})
}
