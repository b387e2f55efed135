package jobs

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/sim/history"
)

// ledger is what enqueuers, handlers, workers and operators of a run of jobs
// remember for the oracle. It is in memory: no fault gets at it.
type ledger struct {
	began time.Time

	mu       sync.Mutex
	enqueued []entry
	cancels  []history.Cancel
	runs     []history.JobRun
	told     []history.Told
	runners  map[string]*history.Runner // by name
	order    []string                   // of their names
	misled   []string
	waited   int
	outages  []history.Outage
	slow     []history.Outage
	calls    map[call]int // index in runs, of running calls in other processes
	ids      []int64      // of committed jobs, to be cancelled
}

// call names a call of a handler in a process.
type call struct {
	worker string // its name
	n      int
}

// entry is what was enqueued, and when.
type entry struct {
	history.Enqueued
	begun int64 // the life of the server
	async bool  // it was acknowledged before it was safe
}

func newLedger(began time.Time) *ledger {
	return &ledger{began: began, runners: map[string]*history.Runner{}, calls: map[call]int{}}
}

// lock locks the ledger, and returns what unlocks it.
func (b *ledger) lock() (unlock func()) {
	b.mu.Lock()
	return b.mu.Unlock
}

// now is the time in the ledgers.
func (b *ledger) now() float64 { return time.Since(b.began).Seconds() }

// enqueue records what became of jobs in a transaction.
func (b *ledger) enqueue(all []entry) {
	defer b.lock()()
	for _, x := range all {
		x.At = b.now()
		b.enqueued = append(b.enqueued, x)
		if x.Outcome == history.EnqueueCommitted && !x.Existing && !x.Asked {
			b.ids = append(b.ids, x.ID)
		}
	}
}

// recent is the id of a job that was committed not long ago, 0 if there is none.
func (b *ledger) recent(back int) int64 {
	defer b.lock()()
	if i := len(b.ids) - 1 - back; i >= 0 {
		return b.ids[i]
	}
	return 0
}

// cancel records a request to cancel a job. answered records the answer.
func (b *ledger) cancel(id int64) (answered func(was string)) {
	defer b.lock()()
	n := len(b.cancels)
	b.cancels = append(b.cancels, history.Cancel{ID: id, At: b.now()})
	return func(was string) {
		defer b.lock()()
		b.cancels[n].Was, b.cancels[n].At = was, b.now()
	}
}

// begin records the begin of a run, and returns its number.
func (b *ledger) begin(r history.JobRun) (n int) {
	defer b.lock()()
	r.Began = b.now()
	b.runs = append(b.runs, r)
	return len(b.runs) - 1
}

// end records how a run has ended.
func (b *ledger) end(n int, outcome string) {
	defer b.lock()()
	b.runs[n].Ended, b.runs[n].Outcome = b.now(), outcome
}

func (b *ledger) tell(t history.Told) {
	defer b.lock()()
	b.told = append(b.told, t)
}

// take takes a record of a worker's process. It reports whether the record was for this ledger
// only, and not for the history.
func (b *ledger) take(r history.Record) (all bool) {
	switch about := r.About.(type) {
	case history.Runner:
		b.add(about)
		return true
	case history.HandlerRun:
		b.called(call{r.Who, about.N}, about.JobRun)
		return true
	case history.JobDone:
		t := history.Told{Worker: b.runner(r.Who).ID, ID: about.ID, Attempt: about.Attempt, State: about.State}
		if t.State == lost {
			t.Lost, t.State = true, ""
		}
		b.tell(t)
	}
	return false
}

// called records a run that a process reports, by the clock of the process.
func (b *ledger) called(c call, r history.JobRun) {
	defer b.lock()()
	if n, begun := b.calls[c]; begun {
		b.runs[n] = r
		delete(b.calls, c)
		return
	}
	b.calls[c] = len(b.runs)
	b.runs = append(b.runs, r)
}

func (b *ledger) mislead(what string) {
	defer b.lock()()
	b.misled = append(b.misled, what)
}

func (b *ledger) waitedFor() {
	defer b.lock()()
	b.waited++
}

// add records a new worker.
func (b *ledger) add(r history.Runner) {
	defer b.lock()()
	known := b.known(r.Name)
	known.ID, known.Version = r.ID, r.Version
}

// runner is what is known of a worker.
func (b *ledger) runner(name string) history.Runner {
	defer b.lock()()
	return *b.known(name)
}

// known is the worker of a name. A process is known before it reports its worker's ID.
func (b *ledger) known(name string) *history.Runner {
	if b.runners[name] == nil {
		b.runners[name] = &history.Runner{Name: name}
		b.order = append(b.order, name)
	}
	return b.runners[name]
}

// fault records that something happens to workers.
func (b *ledger) fault(names ...string) {
	defer b.lock()()
	for _, name := range names {
		b.known(name).Faulted = true
	}
}

// crash records that a worker is gone.
func (b *ledger) crash(name string) {
	b.fault(name)
	defer b.lock()()
	b.known(name).GoneAt = b.now()
}

// outage records that something kept the server from its work from then until now.
func (b *ledger) outage(from time.Time) {
	defer b.lock()()
	b.outages = append(b.outages, history.Outage{From: from.Sub(b.began).Seconds(), To: b.now()})
}

// slowness records that the machine has not kept up from then until now.
func (b *ledger) slowness(from time.Time) {
	defer b.lock()()
	b.slow = append(b.slow, history.Outage{From: from.Sub(b.began).Seconds(), To: b.now()})
}

// collect hands the ledgers over. What was enqueued asynchronously before a crash may
// be gone.
func (b *ledger) collect(j *history.Jobs, life int64) {
	defer b.lock()()
	for _, x := range b.enqueued {
		if x.async && x.begun < life && x.Outcome == history.EnqueueCommitted {
			x.Outcome = history.EnqueueUnsure
		}
		if x.Flow != "" {
			j.Started = append(j.Started, x.Enqueued)
			continue
		}
		j.Enqueued = append(j.Enqueued, x.Enqueued)
	}
	for _, name := range b.order {
		j.Workers = append(j.Workers, *b.runners[name])
	}
	j.Cancels, j.Runs, j.Told, j.Misled, j.Waited, j.Outages, j.Slow = b.cancels, b.runs, b.told, b.misled, b.waited, b.outages, b.slow
}

// awaitResult waits for a job as a client does, and compares what it returns. It gives up
// when the workers have too much else to do.
func (b *ledger) awaitResult(ctx context.Context, token string, wait func(context.Context) (string, error)) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got, err := wait(ctx)
	switch {
	case err != nil: // it has not completed, or not yet
	case got != token:
		b.mislead("Wait returned the result " + got + " of the job with the token " + token)
	default:
		b.waitedFor()
	}
}

// done counts the runs whose handler did its work.
func (b *ledger) done() (n int64) {
	defer b.lock()()
	for _, t := range b.told {
		if t.State == "completed" {
			n++
		}
	}
	return n
}

// committed counts the jobs that were enqueued.
func (b *ledger) committed() int64 {
	defer b.lock()()
	return int64(len(b.ids))
}

// lost is the state that the history has of a job that is another worker's.
const lost = "lost"
