package workertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// moment is when a fault happens to a call of the handler.
type moment int

const (
	never moment = iota
	before
	during
	after
	atCommit // while the transaction commits, or shortly before or after
)

// fault is what happens to a call of the handler.
type fault struct {
	at    moment
	fails bool // the call returns an error
	cuts  bool // the server ends the connection
	stops bool // the worker stops, and a worker with a new value of the consumer starts
}

// deck has the faults of a storm. Further ones are of the first two.
var deck = []fault{
	{at: before, fails: true},
	{at: after, fails: true},
	{at: after, cuts: true, stops: true},
	{at: atCommit, cuts: true, stops: true},
	{at: during, cuts: true, stops: true},
	{at: after, stops: true},
	{at: after, fails: true, stops: true},
	{at: before, cuts: true, stops: true},
	{at: atCommit, cuts: true, stops: true},
	{at: after, cuts: true},
	{at: during, stops: true},
}

const (
	crew     = 2  // workers at a time
	failures = 40 // failures in a row of a handler that end the storm: more than there are faults of one event
	thinned  = 8  // one of so many events has a fault more
	rescale  = 250 * time.Millisecond

	stormInterval = 4 * pollInterval
	longest       = 5 * time.Second // of the part with faults
)

// batchSizes are the batch sizes of the workers, in turn.
var batchSizes = []int{7, 1, 20, 3}

// partitions are the numbers of partitions, in turn.
var partitions = []int{4, 8, 1, 2}

var errFault = errors.New("a fault of the storm")

// gale is the part of a storm with workers.
type gale struct {
	*storm
	from   consumer.Start
	ledger ledger
	lives  atomic.Int64

	mu      sync.Mutex
	faults  map[int64][]fault // by position; each happens to one call
	failure error             // the last error of the handler that no fault has caused
}

// begin draws the faults.
func (s *storm) begin() *gale {
	g := &gale{storm: s, from: consumer.After(s.start), faults: map[int64][]fault{}}
	for i := range len(deck) + len(s.events)/thinned {
		f := deck[i%2]
		if i < len(deck) {
			f = deck[i]
		}
		p := s.events[s.dice.IntN(len(s.events))].GlobalPosition
		g.faults[p] = append(g.faults[p], f)
	}
	return g
}

// next returns the fault of a call with events.
func (g *gale) next(events []store.PersistedEvent) fault {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range events {
		if of := g.faults[e.GlobalPosition]; len(of) > 0 {
			g.faults[e.GlobalPosition] = of[1:]
			return of[0]
		}
	}
	return fault{}
}

// calm ends the faults.
func (g *gale) calm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = nil
}

func (g *gale) isCalm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.faults == nil
}

// run runs workers until they have handled all events. No worker is running when run returns.
func (g *gale) run(outer context.Context, operator *ops.Operator, calm time.Duration) error {
	ctx, cancel := context.WithCancelCause(outer)
	var running sync.WaitGroup
	for range crew {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := g.live(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	defer time.AfterFunc(calm, g.calm).Stop()
	err := g.direct(ctx, operator, calm)
	if ctx.Err() != nil && outer.Err() == nil {
		err = context.Cause(ctx) // of a worker
	}
	cancel(err)
	running.Wait()
	return err
}

// life is a worker with a value of the consumer.
type life struct {
	*gale
	cancel  context.CancelFunc
	meets   chan struct{}
	crashed atomic.Bool
	strikes sync.WaitGroup
}

// live runs a worker until a fault stops it, or ctx ends.
func (g *gale) live(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &life{gale: g, cancel: cancel, meets: make(chan struct{})}
	opts := slices.Concat(settings(), g.opts, []worker.Option{
		worker.WithDispatcherStrategy(worker.DispatcherStrategyPoll), worker.WithDispatcherInterval(stormInterval),
		worker.WithPollInterval(pollInterval), worker.WithMaxPollInterval(stormInterval),
		worker.WithRebalanceInterval(stormInterval), worker.WithShutdownTimeout(time.Second),
		worker.WithFailurePolicy(worker.FailStop), worker.WithMaxConsecutiveFailures(failures),
		worker.WithStaleGapThreshold(2 * pollInterval), worker.WithStaleGapHarborLag(0),
		worker.WithBatchSize(batchSizes[int(g.lives.Add(1))%len(batchSizes)]), worker.WithBatchPause(0),
		worker.WithLogger(nil),
	})
	err := worker.New(g.db, g.log, []consumer.Consumer{watchOne(g.create(), l.around, &g.from)}, opts...).Start(ctx)
	l.strikes.Wait()
	switch {
	case errors.Is(err, worker.ErrTransactionEnded), errors.Is(err, worker.ErrHandlerOverdue):
		return err
	case l.crashed.Load(), errors.Is(err, worker.ErrOutcomeUnknown): // the outcome of a batch whose connection was cut
		return nil
	}
	return err
}

// around calls the handler, with the next fault of its events.
func (l *life) around(ctx context.Context, t *transaction, events []store.PersistedEvent, handle func() error) error {
	if l.crashed.Load() {
		return errFault
	}
	f := l.next(events)
	strike, err := l.prepare(ctx, t, f)
	if err != nil {
		return err
	}
	l.meet()
	switch f.at {
	case before:
		if err := strike(); err != nil {
			return err
		}
	case during:
		l.strikes.Go(func() { _ = strike() })
	}
	if err := handle(); err != nil {
		if ctx.Err() == nil && !pgdriver.IsConnectionLoss(err) {
			l.mu.Lock()
			l.failure = err
			l.mu.Unlock()
		}
		return err
	}
	l.ledger.add(t.id, events)
	switch f.at {
	case after:
		return strike()
	case atCommit:
		l.strikes.Go(func() { _ = strike() })
	}
	return nil
}

// meet waits shortly for a call of another partition with the same value of the consumer, so that the
// two calls begin together.
func (l *life) meet() {
	if l.parts == nil || l.isCalm() {
		return
	}
	select {
	case l.meets <- struct{}{}:
	case <-l.meets:
	case <-time.After(stormInterval):
	}
}

// prepare returns the function that does f.
func (l *life) prepare(ctx context.Context, t *transaction, f fault) (strike func() error, err error) {
	var pid int
	if f.cuts {
		if err := t.tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return nil, err
		}
	}
	return func() (err error) {
		if f.cuts {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_, _ = l.db.ExecContext(ctx, `SELECT pg_terminate_backend($1::int)`, pid) // a role may not be allowed to
			cancel()
		}
		if f.stops {
			if f.cuts || f.fails { // another unit's stop may come later
				l.crashed.Store(true)
			}
			l.cancel()
		}
		if f.fails {
			err = errFault
		}
		return err
	}, nil
}

// direct splits and merges the consumer, and commits the late writers. It commits those of a
// Partitioned consumer while the consumer is split: on a quick machine, no other event is left for the
// parts. On a slow machine, it splits the consumer for the late writers after the end of the faults. It
// returns when the consumer has handled all events.
func (g *gale) direct(ctx context.Context, operator *ops.Operator, calm time.Duration) error {
	began, awaited, rescaling := time.Now(), "the first checkpoint", rescaling{gale: g, operator: operator}
	for {
		select {
		case <-ctx.Done():
			return g.unfinished(ctx, awaited)
		case <-time.After(stormInterval):
		}
		all, err := operator.Consumers(ctx)
		i := slices.IndexFunc(all, func(c ops.Consumer) bool { return c.Name == g.name })
		if err != nil || i < 0 {
			continue
		}
		c, whole, ended := all[i], g.parts != nil && len(all[i].Units) == 0, time.Since(began) > calm
		if g.parts != nil && (!ended || whole && len(g.late) > 0) {
			rescaling.step(ctx, c)
		}
		if len(g.late) > 0 && (ended || c.Position >= g.late[0].first) && (!whole || ended && rescaling.refused) {
			if err := g.commitLate(); err != nil {
				return err
			}
			continue
		}
		if len(g.late) == 0 && c.OpenRanges == 0 && c.HeadLag == 0 {
			return nil
		}
		awaited = fmt.Sprintf("the consumer at position %d, with %d positions to the head and %d ranges in doubt", c.Position, c.HeadLag, c.OpenRanges)
	}
}

// rescaling splits and merges a consumer, as [partitions] says.
type rescaling struct {
	*gale
	operator *ops.Operator
	n        int       // steps so far
	last     time.Time // of the last step
	reached  int64     // the highest position of the consumer's units at that time
	refused  bool      // the last step failed
}

// step does the next step. Before, the workers must have done the last one, and the parts must have
// handled events since.
func (t *rescaling) step(ctx context.Context, c ops.Consumer) {
	reached := c.Position
	for _, u := range c.Units {
		reached = max(reached, u.Position)
	}
	number := func(n int) int { return partitions[n%len(partitions)] }
	parts := max(1, len(c.Units))
	if time.Since(t.last) <= rescale || t.n > 0 && parts != number(t.n-1) || parts > 1 && reached <= t.reached {
		return
	}
	err := t.operator.Partition(ctx, t.name, number(t.n), ops.By{Operator: "workertest", Reason: "a storm"})
	t.last, t.reached = time.Now(), reached
	if t.refused = err != nil && !errors.Is(err, ops.ErrUnchanged); !t.refused {
		t.n++
	}
}

// unfinished returns the cause of the end of ctx, and what the storm awaited.
func (g *gale) unfinished(ctx context.Context, awaited string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := fmt.Errorf("awaited %s: %w", awaited, context.Cause(ctx))
	if g.failure != nil {
		err = fmt.Errorf("%w; the last error of the handler: %w", err, g.failure)
	}
	return err
}
