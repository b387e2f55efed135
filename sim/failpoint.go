package sim

import (
	"context"
	"sync/atomic"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store/consumer"
)

// point is a moment in the life of a batch.
type point int

const (
	afterGuard      point = iota // nothing has been handled yet
	afterEffect                  // some of it has
	beforeStatement              // the handler's first statement is not sent
	afterStatement               // it has happened, its answer is lost
	beforeCommit                 // the same of the COMMIT
	afterCommit
)

func (p point) String() string {
	return [...]string{history.AfterGuard, history.InBatch, history.BeforeStatement, history.AfterStatement, history.BeforeCommit, history.AfterCommit}[p]
}

// handler is the point which the handler passes before this one: from there the
// connection takes over.
func (p point) handler() point {
	switch p {
	case beforeStatement, afterStatement:
		return afterGuard
	case beforeCommit, afterCommit:
		return afterEffect
	}
	return p
}

// failpoint is a fault that waits for a batch.
type failpoint struct {
	at     point
	inject func()
	state  atomic.Int32
	hit    chan struct{} // closed when the fault was injected
}

const (
	armed int32 = iota
	fired
	disarmed
)

func (p *failpoint) fire() {
	if p.state.CompareAndSwap(armed, fired) {
		p.inject()
		close(p.hit)
	}
}

// disarm reports whether the fault was not injected, and never will be.
func (p *failpoint) disarm() bool { return p.state.CompareAndSwap(armed, disarmed) }

// arm sets a failpoint for the worker's next batch.
func (n *node) arm(at point, inject func()) *failpoint {
	p := &failpoint{at: at, inject: inject, hit: make(chan struct{})}
	n.armed.Store(p)
	return p
}

// reach is called by the handlers as they pass the points.
func (n *node) reach(ctx context.Context, at point) {
	p := n.armed.Load()
	if p == nil || p.at.handler() != at || !n.armed.CompareAndSwap(p, nil) {
		return
	}
	if p.at == at {
		p.fire()
		return
	}
	conn, _ := consumer.Conn(ctx)
	wire, err := failpointConnOf(conn)
	if err != nil { // never: all of a node's connections go through its network
		p.fire()
		return
	}
	switch p.at {
	case beforeStatement, afterStatement:
		wire.atStatement(p.at == afterStatement, p.fire)
	default:
		wire.atCommit(p.at == afterCommit, p.fire)
	}
}
