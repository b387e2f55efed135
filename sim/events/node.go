package events

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// node is a process as far as the database can tell: one worker of consumers, and its
// machine.
type node struct {
	*stage.Machine
	failpoints
	knobs  Knobs
	worker *worker.Worker
	apart  atomic.Bool  // it was led to a second primary
	fate   atomic.Int32 // how it will end: toBreak, toCrash
	// undone is the batch in flight that a handler has rolled back; nil: none.
	undone atomic.Pointer[history.Breach]
}

func (n *node) id() string { return n.worker.ID().String() }

func (n *node) Ready(ctx context.Context) bool {
	return n.AwaitRunning(ctx, func() bool { return n.worker.Status().State == observe.StateRunning })
}

func (n *node) Stop() { n.worker.Stop() }

// Await waits for the end of the worker that was asked to end. The worker's time to
// end covers a batch in flight and its leaving.
func (n *node) Await(asked string) history.Exit {
	x := n.AwaitEnd(asked, n.knobs.EndBound(n.Bounds))
	switch {
	case !x.InTime:
	case n.Broke():
		x.Asked = history.ExitBroke
	case errors.Is(n.Err, worker.ErrOutcomeUnknown):
		x.Asked = history.ExitOutage
	}
	return x
}

// Broke reports whether the worker has ended because its handler broke the rule,
// or says that it cannot know.
func (n *node) Broke() bool {
	return n.fate.Load() == toBreak && (errors.Is(n.Err, worker.ErrTransactionEnded) || errors.Is(n.Err, worker.ErrOutcomeUnknown))
}

// awaitBreach waits until a worker has ended whose handler broke the rule.
func (n *node) awaitBreach(ctx context.Context) {
	const enough = 5 * time.Second
	if n.fate.Load() != toBreak {
		return
	}
	timer := time.NewTimer(n.Bounds.Of(enough))
	defer timer.Stop()
	select {
	case <-n.Done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// The ends of a node exclude each other: in a process that crashes, nobody could mend what a
// handler has broken.
const (
	toBreak = iota + 1
	toCrash
)

// crash ends the process, without a clean stop. It reports false if a handler has broken the rule.
func (n *node) crash(how func(*network.Network)) bool {
	if !n.fate.CompareAndSwap(0, toCrash) {
		return false
	}
	how(n.Net)
	n.Cancel()
	return true
}
