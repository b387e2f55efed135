package flow_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// Jobs of an order.
type (
	chargeJob struct{ Order int }
	shipJob   struct{ Order int }
	refundJob struct{ Order int }
	noteJob   struct{ Order int }
)

func (chargeJob) Kind() string { return "charge" }
func (shipJob) Kind() string   { return "ship" }
func (refundJob) Kind() string { return "refund" }
func (noteJob) Kind() string   { return "note" }

type receipt struct {
	Number int
	Risk   string
}

// order is a flow of each kind of step.
type order struct {
	*flow.Flow[int]
	charge *flow.Step[chargeJob, receipt]
	ship   *flow.Step[shipJob, flow.None]

	// These are the functions of the handlers; nil completes the job.
	onCharge, onShip, onRefund func() error
	number                     atomic.Int64
}

// newOrder makes a flow: charge, then ship; refund if ship fails; and note, in any case.
func newOrder(s *stage, opts ...flow.StepOption) *order {
	o := &order{Flow: flow.New[int]("order")}
	quickly := flow.Enqueue(jobs.MaxAttempts(1))
	o.charge = flow.Add[receipt](o.Flow, "charge", func(n int) chargeJob { return chargeJob{n} }, quickly)
	o.ship = flow.Add[flow.None](o.Flow, "ship", func(n int) shipJob { return shipJob{n} }, append(opts, flow.After(o.charge), quickly)...)
	flow.Add[flow.None](o.Flow, "refund", func(n int) refundJob { return refundJob{n} }, flow.OnFailure(o.ship), quickly)
	flow.Add[flow.None](o.Flow, "note", func(n int) noteJob { return noteJob{n} }, flow.OnEnd(o.ship), quickly)
	call := func(f func() error) error {
		if f == nil {
			return nil
		}
		return f()
	}
	flow.HandleTx(s.Handlers, o.charge, func(_ context.Context, _ *sql.Tx, j *jobs.Job[chargeJob]) (receipt, error) {
		return receipt{j.Args.Order + int(o.number.Add(1)), "low"}, call(o.onCharge)
	})
	flow.Handle(s.Handlers, o.ship, func(ctx context.Context, j *jobs.Job[shipJob]) (flow.None, error) {
		r, err := o.charge.Output(ctx, s.Client, flow.RunOf(j.Header))
		if err == nil && r.Number <= j.Args.Order {
			err = fmt.Errorf("the receipt is %+v", r)
		}
		if err == nil {
			err = call(o.onShip)
		}
		return flow.None{}, err
	})
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[refundJob]) error { return call(o.onRefund) })
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[noteJob]) error { return nil })
	return o
}

var errBoom = errors.New("boom")

// withCode is an error of the user's with a code.
type withCode string

func (c withCode) Error() string { return "the payment provider says " + string(c) }
func (c withCode) Code() string  { return string(c) }

// The ends of its last steps decide the state of a run.
func TestEnds(t *testing.T) {
	t.Parallel()
	boom := func() error { return errBoom }
	for name, c := range map[string]struct {
		opts  []flow.StepOption
		setUp func(o *order)
		want  string
	}{
		"all is well":                      {nil, func(*order) {}, "completed: charge completed ship completed refund skipped note completed"},
		"the first fails":                  {nil, func(o *order) { o.onCharge = boom }, "failed: charge failed ship skipped refund completed note completed"},
		"the second fails":                 {nil, func(o *order) { o.onShip = boom }, "failed: charge completed ship failed refund completed note completed"},
		"the refund fails":                 {nil, func(o *order) { o.onShip, o.onRefund = boom, boom }, "failed: charge completed ship failed refund failed note completed"},
		"it may fail":                      {[]flow.StepOption{flow.Optional()}, func(o *order) { o.onShip = boom }, "completed: charge completed ship failed refund completed note completed"},
		"it skips itself":                  {nil, func(o *order) { o.onShip = func() error { return flow.Skip("a gift") } }, "completed: charge completed ship skipped refund skipped note completed"},
		"it discards itself":               {nil, func(o *order) { o.onShip = func() error { return jobs.Discard(errBoom) } }, "failed: charge completed ship cancelled refund completed note completed"},
		"it has our code":                  {nil, func(o *order) { o.onShip = func() error { return jobs.Fail(withCode("SKIPPED")) } }, "failed: charge completed ship failed refund completed note completed"},
		"it discards itself with our code": {nil, func(o *order) { o.onShip = func() error { return jobs.Discard(withCode("SKIPPED")) } }, "failed: charge completed ship cancelled refund completed note completed"},
		"it panics":                        {nil, func(o *order) { o.onShip = func() error { panic("boom") } }, "failed: charge completed ship failed refund completed note completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			o := newOrder(s, c.opts...)
			c.setUp(o)
			s.work()
			run := start(s, o.Flow, 7)
			r := s.ended(run)
			s.want("the run", c.want, r)
			_, err := s.Wait(t.Context(), run)
			var failed *flow.FailedError
			if is := errors.As(err, &failed); is != (r.State == jobs.StateFailed) || is && (failed.Run != run || failed.Step == "" || failed.Text == "") {
				t.Errorf("Wait returns %v", err)
			}
			if n := s.count(`SELECT count(*) FROM jobs_flow_steps WHERE finished_at IS NULL`) + s.count(`SELECT count(*) FROM jobs`); n > 0 {
				t.Errorf("%d are left", n)
			}
		})
	}
}

// A step runs if the result of another step contains the pattern. A step that is not needed does
// not make the run fail.
func TestIf(t *testing.T) {
	t.Parallel()
	for risk, want := range map[string]string{
		"high": "completed: charge completed review completed ship completed",
		"low":  "completed: charge completed review skipped ship completed",
	} {
		t.Run(risk, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			f := flow.New[int]("risky")
			charge := flow.Add[receipt](f, "charge", func(n int) chargeJob { return chargeJob{n} })
			review := flow.Add[flow.None](f, "review", func(n int) noteJob { return noteJob{n} }, flow.If(charge, map[string]any{"Risk": "high"}))
			ship := flow.Add[flow.None](f, "ship", func(n int) shipJob { return shipJob{n} }, flow.OnEnd(review), flow.After(charge))
			flow.Handle(s.Handlers, charge, func(context.Context, *jobs.Job[chargeJob]) (receipt, error) { return receipt{1, risk}, nil })
			flow.Handle(s.Handlers, review, func(context.Context, *jobs.Job[noteJob]) (flow.None, error) { return flow.None{}, nil })
			flow.Handle(s.Handlers, ship, func(context.Context, *jobs.Job[shipJob]) (flow.None, error) { return flow.None{}, nil })
			s.work()
			s.want("the run", want, s.ended(start(s, f, 1)))
		})
	}
}

// If a worker settles a step and dies before it reports the end, another worker finds the end. Here
// the first worker never reports.
func TestCrashBetweenSettleAndPropagate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	stop := s.workOn(s.d.DB)
	run := start(s, o.Flow, 1)
	s.until("the first step to have ended", func() bool { return s.count(`SELECT count(*) FROM jobs_history`) == 1 })
	if r, err := s.Get(t.Context(), run); err != nil || states(r) != "running: charge completed ship waiting refund waiting note waiting" {
		t.Errorf("the run is %s, %v", states(r), err)
	}
	stop()
	s.work()
	s.want("the run", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
}

// The statement that reports an end is lost, or its answer is lost. The sweep of another worker
// continues.
func TestLostStatements(t *testing.T) {
	t.Parallel()
	for name, swallow := range map[string]func(h *pgtest.Hole){
		"the statement": func(h *pgtest.Hole) { h.Swallow("seen AS MATERIALIZED") },
		"its answer":    func(h *pgtest.Hole) { h.SwallowAnswer("seen AS MATERIALIZED") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			o := newOrder(s)
			db, hole := s.d.OpenHole(t)
			swallow(hole)
			s.workOn(db, flow.Advance())
			run := start(s, o.Flow, 1)
			s.until("the connection to fall silent", func() bool { return hole.Fallen() > 0 })
			s.work()
			s.want("the run", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
			if n := s.count(`SELECT count(*) FROM jobs_history WHERE kind = 'ship'`); n != 1 {
				t.Errorf("%d jobs ship", n)
			}
		})
	}
}

// A run of a step that has lost its job ends nothing. The run with the claim joins once.
func TestZombieOfAStep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	hold, began := make(chan struct{}), make(chan struct{}, 2)
	var calls atomic.Int64
	o.onShip = func() error {
		began <- struct{}{}
		if calls.Add(1) == 1 {
			<-hold
		}
		return nil
	}
	lost := make(chan jobs.Header, 1)
	s.work(jobs.WithObserver(observe.On(func(h observe.JobLost) { lost <- jobs.Header(h.Job) })))
	run := start(s, o.Flow, 1)
	<-began
	// The leader does this with the jobs of a worker that seems dead.
	s.d.Exec(t, `UPDATE jobs SET state = 'available', claim = NULL, claimed_by = NULL, started_at = NULL, resets = resets + 1 WHERE kind = 'ship'`)
	<-began
	s.want("the run", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
	close(hold)
	<-lost
	s.want("the run later", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
	if n := s.count(`SELECT count(*) FROM jobs_history WHERE kind = 'note'`); n != 1 {
		t.Errorf("%d jobs note", n)
	}
}

type endJob struct{ How jobs.State }

func (endJob) Kind() string { return "end" }

// Several workers notify the end of a run once, with its state. Runs that Cancel ends itself are
// not notified.
func TestEndedRunsAreNotifiedOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	began := make(chan struct{})
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[endJob]) error {
		switch j.Args.How {
		case jobs.StateFailed:
			return errors.New("no")
		case jobs.StateCancelled:
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	f := flow.New[jobs.State]("ends")
	first := flow.Add[flow.None](f, "first", func(how jobs.State) endJob { return endJob{how} }, flow.Enqueue(jobs.MaxAttempts(1)))
	flow.Add[flow.None](f, "last", func(jobs.State) endJob { return endJob{jobs.StateCompleted} }, flow.After(first))
	if _, err := s.Cancel(t.Context(), nil, start(s, f, jobs.StateFailed)); err != nil {
		t.Fatal(err)
	}
	notified := make(chan observe.FlowRunEnded, 100)
	hears := jobs.WithObserver(observe.On(func(r observe.FlowRunEnded) { notified <- r }))
	stops := []func(){s.work(hears), s.work(hears)}
	want := map[int64]jobs.State{}
	for i, how := range []jobs.State{jobs.StateCancelled, jobs.StateCompleted, jobs.StateFailed, jobs.StateCompleted, jobs.StateFailed} {
		run := start(s, f, how)
		want[run] = how
		if i == 0 {
			<-began
			if _, err := s.Cancel(t.Context(), nil, run); err != nil {
				t.Fatal(err)
			}
		}
	}
	for run := range want {
		s.ended(run)
	}
	for _, stop := range stops {
		stop()
	}
	close(notified)
	for r := range notified {
		if r.Flow != "ends" || r.Took <= 0 || r.Took > patience || string(r.State) != string(want[r.Run]) {
			t.Errorf("notified: %+v, want %s", r, want[r.Run])
		}
		delete(want, r.Run)
	}
	if len(want) > 0 {
		t.Errorf("not notified: %v", want)
	}
}

// Cancel ends steps that have not begun, and the contexts of running jobs.
func TestCancel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heeds bool
		want  string
	}{
		"heeded":  {true, "cancelled: charge completed ship cancelled refund cancelled note cancelled"},
		"ignored": {false, "cancelled: charge completed ship completed refund cancelled note cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			o := newOrder(s)
			began := make(chan struct{})
			goOn := make(chan struct{})
			o.onShip = func() error {
				close(began)
				<-goOn
				if c.heeds {
					return context.Canceled
				}
				return nil
			}
			s.work()
			run := start(s, o.Flow, 1)
			<-began
			for _, want := range []jobs.State{jobs.StateRunning, jobs.StateRunning} {
				if was, err := s.Cancel(t.Context(), nil, run); err != nil || was != want {
					t.Errorf("it was %s, %v", was, err)
				}
			}
			s.until("the job to be asked", func() bool { return s.count(`SELECT count(*) FROM jobs WHERE cancel_at IS NOT NULL`) == 1 })
			close(goOn)
			s.want("the run", c.want, s.ended(run))
			if was, err := s.Cancel(t.Context(), nil, run); err != nil || was != jobs.StateCancelled {
				t.Errorf("later it was %s, %v", was, err)
			}
		})
	}
	t.Run("nothing runs", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		o := newOrder(s)
		run, other := start(s, o.Flow, 1), start(s, o.Flow, 2)
		tx, err := s.d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if was, err := s.Cancel(t.Context(), tx, run); err != nil || was != jobs.StateRunning {
			t.Errorf("it was %s, %v", was, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if n := s.count(`SELECT count(*) FROM jobs`); n != 2 {
			t.Errorf("after a rollback there are %d jobs", n)
		}
		if _, err := s.Cancel(t.Context(), nil, run); err != nil {
			t.Error(err)
		}
		r, err := s.Get(t.Context(), run)
		if err != nil {
			t.Error(err)
		}
		s.want("the run", "cancelled: charge cancelled ship cancelled refund cancelled note cancelled", r)
		// If the job of a step is cancelled, the run continues without the step.
		if _, err := s.jobs.Cancel(t.Context(), nil, int64(s.count(`SELECT id FROM jobs`))); err != nil {
			t.Error(err)
		}
		s.work()
		s.want("the other", "failed: charge cancelled ship skipped refund completed note completed", s.ended(other))
	})
}

// Cancel and Retry with a pool are atomic, as with nil.
func TestChangesOnAPool(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	run := start(s, o.Flow, 1)
	s.d.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END'`)
	whole := func() string {
		var text string
		if err := s.d.DB.QueryRow(`SELECT (SELECT json_agg(r) FROM jobs_flow_runs AS r)::text || (SELECT json_agg(s ORDER BY s.id) FROM jobs_flow_steps AS s)::text || coalesce((SELECT json_agg(j) FROM jobs AS j)::text, '')`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, c := range []struct {
		name, refused string
		do            func() error
	}{
		{"Cancel", `BEFORE DELETE ON jobs`, func() error { _, err := s.Cancel(t.Context(), s.d.DB, run); return err }},
		{"Retry", `BEFORE INSERT ON jobs`, func() error { return s.Retry(t.Context(), s.d.DB, run) }},
	} {
		s.d.Exec(t, `CREATE TRIGGER refuse `+c.refused+` FOR EACH ROW EXECUTE FUNCTION refuse()`)
		before := whole()
		if err := c.do(); err == nil || !strings.Contains(err.Error(), "not now") {
			t.Errorf("%s returns %v", c.name, err)
		}
		if after := whole(); after != before {
			t.Errorf("after %s failed there is\n%s, and before\n%s", c.name, after, before)
		}
		s.d.Exec(t, `DROP TRIGGER refuse ON jobs`)
		if err := c.do(); err != nil {
			t.Errorf("%s returns %v", c.name, err)
		}
	}
}

// A retry continues a failed run, or begins with the named steps.
func TestRetry(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	o := newOrder(s)
	var broken atomic.Bool
	broken.Store(true)
	asked := make(chan struct{}) // to retry a run that is unfinished
	o.onShip = func() error {
		if broken.Load() {
			return errBoom
		}
		<-asked
		return nil
	}
	s.work()
	run := start(s, o.Flow, 1, flow.Key("k"))
	s.want("the run", "failed: charge completed ship failed refund completed note completed", s.ended(run))
	first, _ := o.charge.Output(ctx, s.Client, run)
	broken.Store(false)
	if err := s.Retry(ctx, nil, run); err != nil {
		t.Fatal(err)
	}
	if err := s.Retry(ctx, nil, run); !errors.Is(err, flow.ErrUnfinished) {
		t.Errorf("of a run that goes on: %v", err)
	}
	close(asked)
	s.want("retried", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
	if again, err := o.charge.Output(ctx, s.Client, run); err != nil || again != first {
		t.Errorf("the first step has given %+v, then %+v, %v", first, again, err)
	}
	if err := s.Retry(ctx, nil, run); err == nil || !strings.Contains(err.Error(), "no step has failed") {
		t.Errorf("of a run that has completed: %v", err)
	}
	if err := s.Retry(ctx, nil, run, "charge"); err != nil {
		t.Fatal(err)
	}
	s.want("begun again", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
	if again, err := o.charge.Output(ctx, s.Client, run); err != nil || again == first {
		t.Errorf("the first step has given %+v again, %v", again, err)
	}
	for step, says := range map[string]string{"nosuch": `the run has no step "nosuch", it has "charge", "ship", "refund", "note"`, "refund": "would be skipped again"} {
		if err := s.Retry(ctx, nil, run, step); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("from %s: %v", step, err)
		}
	}
	if err := s.Retry(ctx, nil, 4711); !errors.Is(err, flow.ErrNotFound) {
		t.Errorf("of no run: %v", err)
	}
	// Another run has the key by now.
	hold := make(chan struct{})
	o.onShip = func() error { <-hold; return nil }
	other := start(s, o.Flow, 1, flow.Key("k"))
	if err := s.Retry(ctx, nil, run, "charge"); !errors.Is(err, flow.ErrKeyBusy) {
		t.Errorf("while another run has the key: %v", err)
	}
	close(hold)
	s.ended(other)
}

// A retry keeps steps that completed without a failed step. It keeps a failure for which another
// way has made up.
func TestRetryKeepsOtherWays(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	f := flow.New[int]("parcel")
	add := func(name string, opts ...flow.StepOption) *flow.Step[stepJob, flow.None] {
		return flow.Add[flow.None](f, name, func(int) stepJob { return stepJob{name} }, append(opts, flow.Enqueue(jobs.MaxAttempts(1)))...)
	}
	courier := add("courier")
	post := add("post", flow.OnFailure(courier))
	sent := add("sent", flow.After(courier, post), flow.Any())
	add("mail", flow.After(sent))
	var mu sync.Mutex
	var did []string
	broken := map[string]bool{"courier": true, "mail": true}
	flow.Handle(s.Handlers, courier, func(_ context.Context, j *jobs.Job[stepJob]) (flow.None, error) {
		mu.Lock()
		defer mu.Unlock()
		if did = append(did, j.Args.Name); broken[j.Args.Name] {
			return flow.None{}, errBoom
		}
		return flow.None{}, nil
	})
	does := func(want ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(did, want) {
			t.Errorf("it did %q, want %q", did, want)
		}
		did = nil
	}
	mend := func(step string) {
		mu.Lock()
		defer mu.Unlock()
		delete(broken, step)
	}
	s.work()
	run := start(s, f, 1)
	s.want("the run", "failed: courier failed post completed sent completed mail failed", s.ended(run))
	does("courier", "post", "sent", "mail")
	mend("mail")
	if err := s.Retry(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	s.want("retried", "completed: courier failed post completed sent completed mail completed", s.ended(run))
	does("mail")
	if err := s.Retry(t.Context(), nil, run); err == nil || !strings.Contains(err.Error(), "no step has failed that") {
		t.Errorf("of a run that has completed: %v", err)
	}
	mend("courier")
	if err := s.Retry(t.Context(), nil, run, "courier"); err != nil {
		t.Fatal(err)
	}
	s.want("by name", "completed: courier completed post skipped sent completed mail completed", s.ended(run))
	does("courier", "sent", "mail")
}

// A cancelled run continues where it was, and repeats nothing. This is a way to pause one run.
func TestRetryOfACancelledRun(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]flow.StepOption{"plain": nil, "optional": {flow.Optional()}} {
		t.Run(name, func(t *testing.T) { retryCancelled(t, opts...) })
	}
}

func retryCancelled(t *testing.T, opts ...flow.StepOption) {
	s := newStage(t)
	o := newOrder(s, opts...)
	begun, cancelled := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	o.onShip = func() error {
		if calls.Add(1) > 1 {
			return nil
		}
		close(begun)
		<-cancelled
		return errBoom
	}
	s.work()
	run := start(s, o.Flow, 1)
	<-begun
	if _, err := s.Cancel(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	close(cancelled)
	s.want("cancelled", "cancelled: charge completed ship cancelled refund cancelled note cancelled", s.ended(run))
	first, err := o.charge.Output(t.Context(), s.Client, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Retry(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	s.want("retried", "completed: charge completed ship completed refund skipped note completed", s.ended(run))
	if again, err := o.charge.Output(t.Context(), s.Client, run); err != nil || again != first {
		t.Errorf("the first step has given %+v, then %+v, %v", first, again, err)
	}
}

// If a skipped step depends on a failed step, the failed step begins again. Steps that completed
// without it do not.
func TestRetryRepeatsNoQuorum(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	f := flow.New[int]("quotes")
	add := func(name string, opts ...flow.StepOption) *flow.Step[stepJob, flow.None] {
		return flow.Add[flow.None](f, name, func(int) stepJob { return stepJob{name} }, append(opts, flow.Enqueue(jobs.MaxAttempts(1)))...)
	}
	a, b := add("a"), add("b")
	add("first", flow.After(a, b), flow.Any())
	add("report", flow.After(a))
	var broken atomic.Bool
	broken.Store(true)
	var firsts atomic.Int64
	flow.Handle(s.Handlers, a, func(_ context.Context, j *jobs.Job[stepJob]) (flow.None, error) {
		if j.Args.Name == "first" {
			firsts.Add(1)
		}
		if j.Args.Name == "a" && broken.Load() {
			return flow.None{}, errBoom
		}
		return flow.None{}, nil
	})
	s.work()
	run := start(s, f, 1)
	s.want("the run", "failed: a failed b completed first completed report skipped", s.ended(run))
	broken.Store(false)
	if err := s.Retry(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	s.want("retried", "completed: a completed b completed first completed report completed", s.ended(run))
	if n := firsts.Load(); n != 1 {
		t.Errorf("first was done %d times", n)
	}
}

// A worker with Advance needs no handlers: it runs no job, and advances the runs of other workers.
func TestAdvanceAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	s.workOn(s.d.DB) // without Advance
	alone := jobs.NewWorker(s.d.DB, nil, append(quick(), flow.Advance())...)
	result := make(chan error, 1)
	go func() { result <- alone.Start(context.WithoutCancel(t.Context())) }()
	s.want("the run", "completed: charge completed ship completed refund skipped note completed", s.ended(start(s, o.Flow, 1)))
	if st := alone.Status(); st.State != observe.StateRunning || st.Queues[0].Claimed > 0 {
		t.Errorf("the worker without handlers: %+v", st)
	}
	alone.Stop()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// stepJob are the arguments of a job of any step.
type stepJob struct{ Name string }

func (stepJob) Kind() string { return "step" }

// A retry of a Map step repeats only the failed jobs, or reads the list again.
func TestRetryOfAList(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	f := newAlbum(flow.Enqueue(jobs.MaxAttempts(1)))
	var broken atomic.Bool
	broken.Store(true)
	var length, calls atomic.Int64
	length.Store(5)
	flow.Handle(s.Handlers, f.list, func(context.Context, *jobs.Job[listJob]) (all []resizeJob, err error) {
		for i := range length.Load() {
			all = append(all, resizeJob{fmt.Sprint(i)})
		}
		return all, nil
	})
	flow.Handle(s.Handlers, f.resize, func(_ context.Context, j *jobs.Job[resizeJob]) (int, error) {
		calls.Add(1)
		if j.Args.Picture == "3" && broken.Load() {
			return 0, errBoom
		}
		return 1, nil
	})
	flow.Handle(s.Handlers, f.zip, func(context.Context, *jobs.Job[zipJob]) (string, error) { return "zip", nil })
	s.work()
	run := start(s, f.Flow, "a")
	r := s.ended(run)
	s.want("the run", "failed: list completed resize failed zip skipped", r)
	if r.Steps[1].Jobs[jobs.StateFailed] != 1 || r.Steps[1].Items[0].Item != 4 || r.Steps[1].Items[0].Error != "boom" {
		t.Errorf("the jobs are %v, the first %+v", r.Steps[1].Jobs, r.Steps[1].Items[0])
	}
	broken.Store(false)
	if err := s.Retry(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	s.want("retried", "completed: list completed resize completed zip completed", s.ended(run))
	if n := calls.Load(); n != 6 {
		t.Errorf("%d pictures were resized, and one was again", n)
	}
	length.Store(2)
	if err := s.Retry(t.Context(), nil, run, "list"); err != nil {
		t.Fatal(err)
	}
	r = s.ended(run)
	s.want("from the list", "completed: list completed resize completed zip completed", r)
	if n := calls.Load(); n != 8 || r.Steps[1].Jobs[jobs.StateCompleted] != 2 {
		t.Errorf("%d pictures were resized, the jobs are %v", n, r.Steps[1].Jobs)
	}
}

// A list may be missing, or too short for the quorum of its jobs.
func TestMissingAndShortLists(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	f := newAlbum(flow.Quorum(2))
	var result any
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[listJob]) error {
		if result == nil {
			return nil
		}
		return j.SetResult(result)
	})
	flow.Handle(s.Handlers, f.resize, func(context.Context, *jobs.Job[resizeJob]) (int, error) { return 1, nil })
	flow.Handle(s.Handlers, f.zip, func(context.Context, *jobs.Job[zipJob]) (string, error) { return "", nil })
	s.work()
	for _, c := range []struct {
		result any
		want   string
	}{{nil, "TOO_FEW"}, {[]resizeJob{{"1"}}, "TOO_FEW"}, {"no list", "NO_LIST"}, {map[string]int{"a": 1}, "NO_LIST"}, {[]resizeJob{{"1"}, {"2"}}, ""}} {
		result = c.result
		r := s.ended(start(s, f.Flow, "a"))
		if got := r.Steps[1].Code; got != c.want || (c.want == "") != (r.State == jobs.StateCompleted) {
			t.Errorf("%v: %s, %s", c.result, states(r), got)
		}
	}
}

// A changed flow has another version. Runs of the old version end in their old shape.
func TestChangedShape(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	hold := make(chan struct{})
	o.onShip = func() error { <-hold; return nil }
	s.work(jobs.WithQueue("default", 20))
	before := start(s, o.Flow, 1)
	s.until("the old run to be in the middle", func() bool {
		return s.count(`SELECT count(*) FROM jobs WHERE kind = 'ship' AND state = 'running'`) == 1
	})

	changed := flow.New[int]("order")
	charge := flow.Add[receipt](changed, "charge", func(n int) chargeJob { return chargeJob{n} })
	pack := flow.Add[flow.None](changed, "pack", func(n int) noteJob { return noteJob{n} }, flow.After(charge))
	flow.Add[flow.None](changed, "ship", func(n int) shipJob { return shipJob{n} }, flow.After(pack))
	after := start(s, changed, 1)
	close(hold)
	old, fresh := s.ended(before), s.ended(after)
	s.want("the old one", "completed: charge completed ship completed refund skipped note completed", old)
	s.want("the new one", "completed: charge completed pack completed ship completed", fresh)
	if old.Version == fresh.Version || s.count(`SELECT count(*) FROM jobs_flows WHERE name = 'order'`) != 2 {
		t.Errorf("the versions are %s and %s", old.Version, fresh.Version)
	}
	// A step at another place is found by name. A missing step is an error.
	if _, err := charge.Output(t.Context(), s.Client, before); err != nil {
		t.Error(err)
	}
	if _, err := pack.Output(t.Context(), s.Client, before); !errors.Is(err, flow.ErrNotFound) || !strings.Contains(err.Error(), `of step "pack"`) || !strings.Contains(err.Error(), `version of it, and has "charge", "ship", "refund", "note"`) {
		t.Errorf("the output of a step that the old run has not: %v", err)
	}
	// An unchanged flow has the same version, and a retry keeps the version.
	if err := s.Retry(t.Context(), nil, before, "charge"); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(before); r.Version != old.Version || len(r.Steps) != 4 {
		t.Errorf("retried it is %s in version %s", states(r), r.Version)
	}
}

// A run is part of the caller's transaction. Only one unfinished run has a key.
func TestStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	o := newOrder(s)
	tx, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	lost, err := o.Start(ctx, s.Client, tx, 1, flow.Key("k"))
	if err = errors.Join(err, tx.Rollback()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, lost.Run); !errors.Is(err, flow.ErrNotFound) {
		t.Errorf("a run that was rolled back: %v", err)
	}
	if n := s.count(`SELECT count(*) FROM jobs`); n != 0 {
		t.Errorf("%d jobs of a run that was rolled back", n)
	}
	first := start(s, o.Flow, 1, flow.Key("k"))
	again, err := o.Start(ctx, s.Client, nil, 2, flow.Key("k"))
	if err != nil || again != (flow.Started{Run: first, Existing: true}) {
		t.Errorf("the key is taken: %+v, %v", again, err)
	}
	s.work()
	s.ended(first)
	if again, err = o.Start(ctx, s.Client, nil, 2, flow.Key("k")); err != nil || again.Existing || again.Run == first {
		t.Errorf("the key is free: %+v, %v", again, err)
	}
	s.ended(again.Run)
	all, err := s.Runs(ctx, flow.Filter{Flow: "order", State: jobs.StateCompleted}, 10)
	if err != nil || len(all) != 2 || all[0].ID != again.Run || all[0].Key != "k" || all[1].FinishedAt == nil {
		t.Errorf("the runs are %+v, %v", all, err)
	}
	if all, err = s.Runs(ctx, flow.Filter{Before: again.Run}, 10); err != nil || len(all) != 1 || all[0].ID != first {
		t.Errorf("the runs before are %+v, %v", all, err)
	}
	r, err := s.Get(ctx, first)
	dot := r.DOT()
	for _, want := range []string{`label="order, run `, `0 [label="charge\ncompleted", fillcolor=palegreen`, `0 -> 1 [label=""]`, `1 -> 2 [label="on failure"]`} {
		if err != nil || !strings.Contains(dot, want) {
			t.Errorf("the picture has no %s: %v\n%s", want, err, dot)
		}
	}
}

// Runs that ended long ago are removed. Unfinished runs stay, and so do jobs whose ends are not
// recorded yet.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	stop := s.work()
	old := start(s, o.Flow, 1)
	s.ended(old)
	stop()
	// This run stands between the end of a job and its effects.
	stop = s.workOn(s.d.DB)
	between := start(s, o.Flow, 1)
	s.until("the step to have ended", func() bool {
		return s.count(`SELECT count(*) FROM jobs_history WHERE (meta->>'flow_run')::bigint = $1`, between) == 1
	})
	stop()
	s.d.Exec(t, `UPDATE jobs_flow_runs SET finished_at = finished_at - interval '1 month' WHERE finished_at IS NOT NULL`)
	s.d.Exec(t, `UPDATE jobs_history SET finished_at = finished_at - interval '1 month'`)
	stop = s.workOn(s.d.DB, jobs.WithRetention(time.Hour))
	s.until("the history to be emptied except for ends to be recorded", func() bool { return s.count(`SELECT count(*) FROM jobs_history`) == 1 })
	stop()
	s.work(jobs.WithRetention(time.Hour))
	s.want("the run that stood between", "completed: charge completed ship completed refund skipped note completed", s.ended(between))
	s.until("the old run to be removed", func() bool { return s.count(`SELECT count(*) FROM jobs_flow_runs`) == 1 })
	if n := s.count(`SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 <> $1`, between); n > 0 {
		t.Errorf("%d steps are left of the old run", n)
	}
	if _, err := s.Get(t.Context(), old); !errors.Is(err, flow.ErrNotFound) {
		t.Errorf("the old run: %v", err)
	}
}

// Flows work with each driver and each of its query modes. They also work behind a proxy that pools
// transactions.
func TestDrivers(t *testing.T) {
	t.Parallel()
	opens := map[string]func(d *pgtest.Database) *sql.DB{"lib/pq": func(d *pgtest.Database) *sql.DB { return d.OpenPQ(t) }}
	for name, mode := range map[string]pgx.QueryExecMode{"exec": pgx.QueryExecModeExec, "cache_describe": pgx.QueryExecModeCacheDescribe,
		"simple_protocol": pgx.QueryExecModeSimpleProtocol, "cache_statement": pgx.QueryExecModeCacheStatement, "describe_exec": pgx.QueryExecModeDescribeExec} {
		opens["pgx "+name] = func(d *pgtest.Database) *sql.DB { return d.OpenMode(t, mode) }
	}
	quick := []string{"direct lib/pq", "direct pgx simple_protocol", "pgbouncer pgx exec"}
	run := func(name string, open func(d *pgtest.Database) *sql.DB, bounced bool) {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(quick, name) {
				tier.Long(t, "TestDrivers, over three of them")
			}
			testDriver(t, open, bounced)
		})
	}
	for name, open := range opens {
		run("direct "+name, open, false)
	}
	for _, name := range []string{"pgx exec", "pgx simple_protocol", "pgx cache_describe"} {
		run("pgbouncer "+name, opens[name], true)
	}
}

func testDriver(t *testing.T, open func(d *pgtest.Database) *sql.DB, bounced bool) {
	t.Parallel()
	s := newStage(t)
	at, leader := s.d, jobs.LeaderStrategyAdvisory
	if bounced {
		at, leader = s.d.Bounced(t, map[string]string{"default_pool_size": "20"}), jobs.LeaderStrategyLease
	}
	db := open(at)
	db.SetMaxIdleConns(10)
	s.jobs = jobs.NewClient(db, jobs.WithNotifyConnectionString(s.d.URL))
	s.Client = flow.NewClient(s.jobs)
	f := newAlbum(flow.Enqueue(jobs.MaxAttempts(1), jobs.Priority(2), jobs.In(time.Millisecond), jobs.MaxResets(3)))
	var broken atomic.Bool
	broken.Store(true)
	flow.Handle(s.Handlers, f.list, func(context.Context, *jobs.Job[listJob]) ([]resizeJob, error) {
		return []resizeJob{{`"quoted" \ 'n ü`}, {"b"}}, nil
	})
	flow.HandleTx(s.Handlers, f.resize, func(_ context.Context, _ *sql.Tx, j *jobs.Job[resizeJob]) (int, error) {
		if j.Args.Picture == "b" && broken.Load() {
			return 0, errBoom
		}
		return len(j.Args.Picture), nil
	})
	flow.Handle(s.Handlers, f.zip, func(ctx context.Context, j *jobs.Job[zipJob]) (string, error) {
		all, err := f.resize.Outputs(ctx, s.Client, flow.RunOf(j.Header))
		return fmt.Sprint(j.Args.Album, all), err
	})
	s.workOn(db, flow.Advance(), jobs.WithLeaderStrategy(leader), jobs.WithRetention(time.Hour))
	run := start(s, f.Flow, `it's \ "ü"`, flow.Key(`it's "k" \`))
	s.want("the run", "failed: list completed resize failed zip skipped", s.ended(run))
	broken.Store(false)
	if err := s.Retry(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	s.want("retried", "completed: list completed resize completed zip completed", s.ended(run))
	if out, err := f.zip.Output(t.Context(), s.Client, run); err != nil || out != `it's \ "ü"[16 1]` {
		t.Errorf("the output is %q, %v", out, err)
	}
	broken.Store(true)
	cancelled := start(s, f.Flow, "c")
	if _, err := s.Cancel(t.Context(), nil, cancelled); err != nil {
		t.Error(err)
	}
	if r := s.ended(cancelled); r.State != jobs.StateCancelled && r.State != jobs.StateFailed {
		t.Errorf("cancelled it is %s", states(r))
	}
	if err := s.Retry(t.Context(), nil, run, "list"); err != nil {
		t.Error(err)
	}
	s.want("from the list", "failed: list completed resize failed zip skipped", s.ended(run))
	if all, err := s.Runs(t.Context(), flow.Filter{Flow: "album"}, 5); err != nil || len(all) != 2 {
		t.Errorf("the runs are %+v, %v", all, err)
	}
}

// Runs with any times can be read, and a turn to sweep that lies far ahead is taken.
func TestFlowsWithFarTimes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o := newOrder(s)
	s.work(jobs.WithRetention(0)) // otherwise the run that ended long ago is removed
	run := start(s, o.Flow, 1)
	s.ended(run)
	for _, c := range []struct {
		at   string
		want time.Time
	}{{"infinity", store.LatestTime}, {"20000-01-01", store.LatestTime}, {"-infinity", store.EarliestTime}} {
		s.d.Exec(t, `UPDATE jobs_flow_runs SET created_at = $1, cancel_at = $1, finished_at = $1`, c.at)
		s.d.Exec(t, `UPDATE jobs_flow_steps SET finished_at = $1`, c.at)
		s.d.Exec(t, `UPDATE jobs_history SET started_at = $1`, c.at)
		r, err := s.Get(t.Context(), run)
		if err != nil || r.CreatedAt != c.want || *r.CancelAt != c.want || *r.FinishedAt != c.want || *r.Steps[0].FinishedAt != c.want || *r.Steps[0].StartedAt != c.want {
			t.Errorf("%s: %+v, %v", c.at, r, err)
		}
		s.d.Exec(t, `UPDATE jobs_flow_sweep SET next_at = $1`, c.at)
		s.until("the turn to sweep to be taken", func() bool {
			return s.count(`SELECT count(*) FROM jobs_flow_sweep WHERE next_at BETWEEN now() - interval '1 hour' AND now() + interval '1 hour'`) == 1
		})
	}
	s.d.Exec(t, `UPDATE jobs_flow_sweep SET next_at = now() + interval '10 minutes'`) // the clock was set back
	s.until("the turn to sweep to be taken", func() bool {
		return s.count(`SELECT count(*) FROM jobs_flow_sweep WHERE next_at < now() + interval '2 minutes'`) == 1
	})
}

// Finished runs are removed by the thousand, with the retention of an operator, also by a worker
// that keeps runs for ever. A run that is locked, or that the database refuses to remove, delays no
// other.
func TestRetentionOfManyRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `
INSERT INTO jobs_flow_runs (flow, version, state, unfinished, created_at, finished_at)
SELECT 'f', 'v', 'completed', 0, now() - interval '30 days', now() - interval '30 days' FROM generate_series(1, $1::int)`, tier.Amount(1_000, 3_000))
	s.d.Exec(t, `INSERT INTO jobs_flow_steps (id, name, state, spec, finished_at) SELECT (r.id << 30) | (n::bigint << 20), 'x', 'completed', '{}', now() FROM jobs_flow_runs AS r, generate_series(0, 2) AS n`)
	s.d.Exec(t, `CREATE TABLE invoices (run bigint REFERENCES jobs_flow_runs)`)
	s.d.Exec(t, `INSERT INTO invoices VALUES (3)`)
	lock, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	if _, err := lock.Exec(`SELECT FROM jobs_flow_runs WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetRetention(t.Context(), ops.AllQueues, time.Hour, ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	notified := make(chan string, 100)
	s.work(jobs.WithRetention(0), jobs.WithObserver(observe.On(func(f observe.TaskFailed) {
		select {
		case notified <- fmt.Sprint(f.Task, ": ", f.Err):
		default:
		}
	})))
	runs := `SELECT count(*) FROM jobs_flow_runs WHERE id NOT IN (2, 3)`
	s.until("all others to be removed", func() bool { return s.count(runs) == 0 })
	if n := s.count(`SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 = 2`); n != 3 {
		t.Errorf("the run that is locked has %d steps", n)
	}
	if got := <-notified; !strings.HasPrefix(got, "remove runs of flows: remove run 3: ") {
		t.Errorf("reported is %q", got)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.until("the run that was locked to be removed", func() bool { return s.count(`SELECT count(*) FROM jobs_flow_runs WHERE id <> 3`) == 0 })
}

// The job of a step cannot be discarded before its run has recorded its end.
func TestDiscardBeforeTheEndIsRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	f := flow.New[int]("order")
	charge := flow.Add[flow.None](f, "charge", func(n int) chargeJob { return chargeJob{n} })
	flow.Add[flow.None](f, "ship", func(n int) shipJob { return shipJob{n} }, flow.After(charge))
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[chargeJob]) error { return nil })
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[shipJob]) error { return nil })
	run := start(s, f, 1)
	s.workOn(s.d.DB) // does not advance
	r, err := s.Get(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	job := r.Steps[0].Job
	s.until("the job to end", func() bool { i, err := s.jobs.Get(t.Context(), job); return err == nil && i.State.Finished() })
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	by := ops.By{Operator: "ann", Reason: "a test"}
	var state *ops.StateError
	if err := o.Discard(t.Context(), job, by); !errors.As(err, &state) || !strings.Contains(err.Error(), "flow.Advance") {
		t.Errorf("discarded before: %v", err)
	}
	s.work()
	if r := s.ended(run); r.State != jobs.StateCompleted {
		t.Errorf("the run: %s", states(r))
	}
	if err := o.Discard(t.Context(), job, by); err != nil {
		t.Errorf("discarded after: %v", err)
	}
}

// PostgreSQL aborts a start for another client's, with a default isolation stricter than read
// committed. The start then finds the other run.
func TestStartOfAKeyUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		s := newStage(t)
		o := newOrder(s)
		first, err := s.d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = first.Rollback() }()
		run, err := o.Start(t.Context(), s.Client, first, 1, flow.Key("k"))
		if err != nil {
			t.Fatal(err)
		}
		client := flow.NewClient(jobs.NewClient(s.d.OpenSet(t, "default_transaction_isolation", level)))
		type answer struct {
			flow.Started
			error
		}
		second := make(chan answer, 1)
		go func() {
			started, err := o.Start(t.Context(), client, nil, 1, flow.Key("k"))
			second <- answer{started, err}
		}()
		pgtest.AwaitBlocked(t, s.d.DB)
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := <-second; got.error != nil || got.Run != run.Run || !got.Existing {
			t.Errorf("%s: %+v, want run %d, which is there", level, got, run.Run)
		}
	}
}
