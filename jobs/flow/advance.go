package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/jobs"
)

// Advance makes a worker advance the runs of flows after the steps whose jobs it has run. About
// once a second, one of all workers sweeps: it finds steps that have ended without a report. Such
// steps belong to a dead worker, or an operator has ended them. The sweep also removes finished
// runs, as [jobs.WithRetention] says.
//
// Such a worker serves all flows of its tables, also flows without handlers in this worker:
// jobs.NewWorker(db, nil, flow.Advance()) runs no jobs.
//
// Give it to all workers that run steps. Without a worker that has it, no run advances. Then the
// workers report this after some seconds ([observe.TaskFailed]), and so does the doctor.
func Advance() jobs.Option {
	return jobflow.ExtensionOption(func() jobflow.Extension { return &advancer{wake: make(chan struct{}, 1)} }).(jobs.Option)
}

const (
	// mostAtOnce bounds the steps in a statement.
	mostAtOnce = 500
	// mostLists bounds the lists in a statement.
	mostLists = 20
	// mostSpread bounds the list elements for which a statement adds steps or jobs.
	mostSpread = 10_000
	// spreadSlice bounds the time for adding the jobs of a long list. Then other runs have their
	// turn.
	spreadSlice = time.Second
	// fullRound is how many ended steps are reported at once, without a pause to gather more.
	fullRound = 200
	// gather bounds the pause in which ended steps gather for the next statement.
	gather = 5 * time.Millisecond
	// heldTries bounds the retries, over about a second, of a step whose run others have locked.
	// Then the step is left to the sweep.
	heldTries = 10
	// mostKept bounds the steps to be retried.
	mostKept = 10_000
	// retainEvery is how often a worker removes finished runs.
	retainEvery = 10 * time.Second
	// retainSlice bounds the time for removing finished runs. Then other tasks have their turn.
	retainSlice = 500 * time.Millisecond
	// mostOld bounds the runs that a statement removes.
	mostOld = 100
	// lastLimit bounds the last statements, when the worker stops.
	lastLimit = 2 * time.Second
)

// advancer is the extension that [Advance] gives to a worker.
type advancer struct {
	w    jobflow.Worker
	sql  statements
	wake chan struct{}

	mu    sync.Mutex
	ended []int64 // steps that have ended

	plans    pgdriver.Plans
	kept     map[movedStep]kept // steps to continue with
	sweepAt  time.Time
	took     time.Duration // duration of the last sweep's page
	swept    batch.Refused[int64]
	long     map[int64]int64 // by run with more than a page of steps: the last step that the sweeps have read
	retainAt time.Time
	pace     batch.Pace
	old      batch.Refused[int64]
}

// kept is when a step is retried, and how often it was.
type kept struct {
	at    time.Time
	tries int
}

// Prepare takes the tables of the worker. It checks that the worker's role has all privileges that
// an advancer ever needs.
func (a *advancer) Prepare(ctx context.Context, conn *sql.Conn, w jobflow.Worker) error {
	a.w, a.sql = w, newStatements(w.Tables, mostSpread)
	if err := rights.Check(ctx, conn, "", rights.JobsFlows(w.Tables)); err != nil {
		return fmt.Errorf("flow: %w", err)
	}
	return nil
}

// Ended records the end of a step.
func (a *advancer) Ended(meta json.RawMessage) {
	id, ok := stepOf(meta)
	if !ok {
		return
	}
	a.mu.Lock()
	a.ended = append(a.ended, int64(id))
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *advancer) take() (ids []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.ended), mostAtOnce)
	ids, a.ended = a.ended[:n:n], a.ended[n:]
	return ids
}

func (a *advancer) putBack(ids []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(ids, a.ended...)
}

func (a *advancer) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ended)
}

// Run reports the ends of steps until ctx ends, and then the ends that are left.
func (a *advancer) Run(ctx context.Context) {
	a.sweepAt = time.Now()
	for ctx.Err() == nil {
		now := time.Now()
		if !now.Before(a.sweepAt) {
			a.sweep(ctx)
		}
		next := a.next()
		if a.waiting() > 0 || !now.Before(next) {
			a.report(ctx)
			continue
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-a.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLimit)
	defer cancel()
	for a.waiting() > 0 && last.Err() == nil {
		a.report(last)
	}
}

// next returns when there is work without a notification.
func (a *advancer) next() time.Time {
	at := a.sweepAt
	for _, k := range a.kept {
		if k.at.Before(at) {
			at = k.at
		}
	}
	return at
}

// report reports ended steps in one statement, and processes the steps that follow from them. It
// also continues with kept steps. If report fails, the sweep finds the steps.
func (a *advancer) report(ctx context.Context) {
	begin := time.Now()
	ids := a.take()
	var again []movedStep
	before := map[movedStep]kept{}
	for m, k := range a.kept {
		if begin.Before(k.at) || len(before) == mostAtOnce {
			continue
		}
		before[m] = k
		delete(a.kept, m)
		if m.state == "enqueued" { // its run was held
			ids = append(ids, m.id)
		} else {
			again = append(again, m)
		}
	}
	a.task(ctx, "advance flows", func(bounded context.Context, conn *sql.Conn) error {
		r := a.sql.round(a.plans.On(conn, conn))
		r.wake, r.ended = a.w.Wake, a.w.RunEnded
		err := errtext.Join(r.advance(bounded, ids), r.proceed(bounded, again))
		if err != nil && ctx.Err() != nil {
			a.putBack(ids) // the worker stops, and records these ends during the stop
		}
		a.keep(r, before)
		return err
	})
	if took := time.Since(begin); a.waiting() < fullRound {
		backoff.Sleep(ctx, min(took, gather))
	}
}

// keep keeps the steps that a round has left: the steps of held runs for a moment, and the steps of
// long lists.
func (a *advancer) keep(r *round, before map[movedStep]kept) {
	if a.kept == nil {
		a.kept = map[movedStep]kept{}
	}
	now := time.Now()
	for _, m := range r.held {
		if tries := before[m].tries + 1; tries <= heldTries && len(a.kept) < mostKept {
			a.kept[m] = kept{now.Add(time.Millisecond << tries), tries}
		}
	}
	for _, m := range r.more {
		if m.state != movedGrown || !a.goesOn(m) {
			a.kept[m] = kept{at: now}
		}
	}
}

// goesOn reports whether the jobs of the step's list are already being enqueued.
func (a *advancer) goesOn(m movedStep) bool {
	for k := range a.kept {
		if k.state == movedGrown && k.id>>itemBits == m.id>>itemBits {
			return true
		}
	}
	return false
}

func (a *advancer) task(ctx context.Context, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	bounded, cancel := context.WithTimeout(ctx, a.w.Limit)
	defer cancel()
	err := a.w.On(bounded, func(conn *sql.Conn) error { return f(bounded, conn) })
	if ctx.Err() == nil {
		a.w.Failed(name, err)
	}
}

// retain removes finished runs, for a slice of time. If more are left, retain continues after the
// next sweep.
func (a *advancer) retain(ctx context.Context, conn *sql.Conn) error {
	out := a.old.Begin(time.Now())
	for begin := time.Now(); ; {
		at, most := time.Now(), a.pace.Most(mostOld)
		all, err := a.sql.ended(ctx, a.plans.On(conn, conn), a.w.Retention, out, most)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			a.old.End()
			return nil
		}
		err = batch.Each(all, func(runs []int64) error { return a.sql.remove(ctx, a.plans.On(conn, conn), runs) }, func(run int64, err error) error {
			err = fmt.Errorf("remove run %d: the database refuses it, and others go on: mend what refuses it, such as a trigger or a foreign key: %w", run, err)
			_, ok := a.old.Add(run, err, time.Now())
			a.w.Failed("remove runs of flows", errtext.Of(err))
			if !ok {
				return fmt.Errorf("more than %d runs are refused, the last one: %w", batch.MostRefused, err)
			}
			out = append(out, run)
			return nil
		})
		a.pace.Took(len(all), time.Since(at), a.w.Limit, err)
		if err != nil {
			return err
		}
		if time.Since(begin) > retainSlice {
			a.retainAt = time.Time{}
			return nil
		}
	}
}

// movedStep is a step that a statement has moved to another state, or that a round has left.
type movedStep struct {
	id    int64
	state string
}

var scanMoved = pgdriver.Columns(func(m *movedStep) []any { return []any{&m.id, &m.state} })

// These are the states of a movedStep that are not stored in the table.
const (
	movedHeld  = "held"  // others have locked its run
	movedLong  = "long"  // a Map step with a long list that still needs steps
	movedGrown = "grown" // the steps of a long list after this one are to be enqueued
	movedFull  = "full"  // the last step of a page of a sweep; more steps may follow
	movedRun   = "run "  // prefix for a run that has ended, followed by its state
)

// round processes steps until no more steps follow without a job.
type round struct {
	statements
	on      jobs.Querier
	wake    func()                          // called if there are new jobs; may be nil
	ended   func(jobflow.EndedRun)          // called for each run that has ended; may be nil
	out     []int64                         // steps that a sweep leaves out, sorted
	refused func(id int64, err error) error // called for a step that the database refuses; nil: the refusal is an error

	late    time.Time     // after this time, long lists are left to the next round
	held    []movedStep   // left, since others have locked their runs
	more    []movedStep   // left steps of long lists
	readFor time.Duration // how long the latest page took to read
}

func (s statements) round(on jobs.Querier) *round {
	return &round{statements: s, on: on, late: time.Now().Add(spreadSlice)}
}

// advance reports the ends of steps, and processes the steps that follow without a job.
func (r *round) advance(ctx context.Context, ids []int64) error {
	var all []error
	for len(ids) > 0 {
		n := min(len(ids), mostAtOnce)
		all = append(all, r.halving(ids[:n], func(ids []int64) error {
			moved, err := pgdriver.QueryAll(ctx, r.on, scanMoved, r.statements.advance, list(ids))
			if err != nil {
				return fmt.Errorf("record the ends of %d steps, the first is of run %d: %w", len(ids), stepID(ids[0]).run(), err)
			}
			return r.proceed(ctx, r.notHeld(r.steps(moved), "enqueued"))
		}))
		ids = ids[n:]
	}
	return errtext.Join(all...)
}

// steps reports the runs that have ended, and returns the other moved steps.
func (r *round) steps(moved []movedStep) (steps []movedStep) {
	for _, m := range moved {
		text, isRun := strings.CutPrefix(m.state, movedRun)
		if !isRun {
			steps = append(steps, m)
			continue
		}
		run := jobflow.EndedRun{Run: m.id}
		if json.Unmarshal([]byte(text), &run) == nil && r.ended != nil { // the statement has made the JSON
			r.ended(run)
		}
	}
	return steps
}

// notHeld keeps the steps whose runs others have locked, and returns the other steps.
func (r *round) notHeld(moved []movedStep, state string) (rest []movedStep) {
	for _, m := range moved {
		if m.state == movedHeld {
			r.held = append(r.held, movedStep{m.id, state})
		} else {
			rest = append(rest, m)
		}
	}
	return rest
}

// halving calls f with ids. If f fails, and one of the runs may be the cause, halving calls f with
// each half. It halves until one run is left. The rows of this run were changed from outside, and
// the other runs proceed.
func (r *round) halving(ids []int64, f func(ids []int64) error) error {
	var all []error
	err := batch.Each(ids, f, func(id int64, err error) error {
		if r.refused != nil {
			return r.refused(id, err)
		}
		all = append(all, err)
		return nil
	})
	return errtext.Join(append(all, err)...)
}

// proceed continues with moved steps: it reports steps that have ended, and spreads Map steps. Each
// statement leaves a consistent state. If the round stops after a statement, the sweep continues.
func (r *round) proceed(ctx context.Context, moved []movedStep) error {
	enqueued := false
	var ended, ready, grown []int64
	var refused error
	for _, m := range moved {
		switch {
		case m.state == "enqueued":
			enqueued = true
		case m.state == movedLong:
			err := r.grow(ctx, m.id)
			refused = errtext.Join(refused, err)
		case m.state == movedGrown:
			err := r.beginBehind(ctx, m.id)
			refused = errtext.Join(refused, err)
		case m.state == "ready" && stepID(m.id).item() > 0:
			grown = append(grown, m.id)
		case m.state == "ready":
			ready = append(ready, m.id)
		case m.state == "", m.state == "waiting", m.state == "spread":
		default:
			ended = append(ended, m.id)
		}
	}
	if len(grown) > 0 {
		refused = errtext.Join(refused, r.begin(ctx, grown))
	}
	spread, more, err := r.spreadLists(ctx, ready)
	enqueued, ended, refused = enqueued || spread, append(ended, more...), errtext.Join(refused, err)
	if enqueued && r.wake != nil {
		r.wake()
	}
	return errtext.Join(refused, r.advance(ctx, ended))
}

// spreadLists spreads Map steps whose lists are complete, for a slice of time. It reports whether
// jobs were enqueued, and returns the steps that have ended.
func (r *round) spreadLists(ctx context.Context, ready []int64) (enqueued bool, ended []int64, refused error) {
	for first := true; len(ready) > 0; first = false {
		if !first && time.Now().After(r.late) {
			for _, id := range ready {
				r.more = append(r.more, movedStep{id, "ready"})
			}
			break
		}
		n := min(len(ready), mostLists)
		part := ready[:n]
		ready = ready[n:]
		refused = errtext.Join(refused, r.halving(part, func(ids []int64) error {
			moved, err := pgdriver.QueryAll(ctx, r.on, scanMoved, r.spread, list(ids))
			if err != nil {
				return fmt.Errorf("add the jobs of %d lists, the first is of run %d: %w", len(ids), stepID(ids[0]).run(), err)
			}
			for _, m := range r.notHeld(moved, "ready") {
				switch m.state {
				case "spread":
					enqueued = true
				case "ready":
					ready = append(ready, m.id)
				case movedLong:
					err = errtext.Join(err, r.grow(ctx, m.id))
				default:
					ended = append(ended, m.id)
				}
			}
			return err
		}))
	}
	return enqueued, ended, refused
}

// grow adds steps to a Map step with a long list, for a slice of time. Once all steps exist, it
// enqueues their jobs.
func (r *round) grow(ctx context.Context, id int64) error {
	for first := true; first || time.Now().Before(r.late); first = false {
		moved, err := pgdriver.QueryAll(ctx, r.on, scanMoved, r.statements.grow, list([]int64{id}))
		if err != nil {
			return fmt.Errorf("add steps of a long list of run %d: %w", stepID(id).run(), err)
		}
		moved = r.notHeld(moved, movedLong)
		switch {
		case len(moved) == 0: // its run is held, or the step does not wait for its list any more
			return nil
		case moved[0].state == "spread":
			return r.beginBehind(ctx, id)
		}
	}
	r.more = append(r.more, movedStep{id, movedLong})
	return nil
}

// beginBehind enqueues the jobs of a long list's steps after the given step, for a slice of time.
func (r *round) beginBehind(ctx context.Context, id int64) error {
	for first := true; first || time.Now().Before(r.late); first = false {
		ids, err := pgdriver.QueryAll(ctx, r.on, pgdriver.Value[int64], r.grown, id)
		if err != nil {
			return fmt.Errorf("read the steps of a long list of run %d: %w", stepID(id).run(), err)
		}
		held := len(r.held)
		if err := r.begin(ctx, ids); err != nil || len(ids) < r.mostSpread {
			return err
		}
		if len(r.held) > held {
			r.held = append(r.held[:held], movedStep{id, movedGrown})
			return nil
		}
		id = ids[len(ids)-1]
	}
	r.more = append(r.more, movedStep{id, movedGrown})
	return nil
}

// begin enqueues the jobs of steps of long lists.
func (r *round) begin(ctx context.Context, ids []int64) error {
	return r.halving(ids, func(ids []int64) error {
		moved, err := pgdriver.QueryAll(ctx, r.on, scanMoved, r.statements.begin, list(ids))
		if err != nil {
			return fmt.Errorf("add %d jobs of a long list of run %d: %w", len(ids), stepID(ids[0]).run(), err)
		}
		if moved = r.notHeld(moved, "ready"); len(moved) > 0 && r.wake != nil {
			r.wake()
		}
		return nil
	})
}

// ended returns the first runs that ended before the retention. A keep of 0 is for ever.
func (s statements) ended(ctx context.Context, on jobs.Querier, keep time.Duration, out []int64, most int) ([]int64, error) {
	given := sql.NullInt64{Int64: keep.Microseconds(), Valid: keep > 0}
	text := strings.ReplaceAll(s.old, "{limit}", strconv.Itoa(pgdriver.RoundLimit(most)))
	return pgdriver.QueryAll(ctx, on, pgdriver.Value[int64], text, given, list(out))
}

// remove removes finished runs that are not locked.
func (s statements) remove(ctx context.Context, on jobs.Querier, runs []int64) error {
	for n := 1; n > 0; {
		if err := on.QueryRowContext(ctx, s.forgetSteps, list(runs)).Scan(&n); err != nil {
			return err
		}
	}
	var n int
	return on.QueryRowContext(ctx, s.forgetRuns, list(runs)).Scan(&n)
}
