package events

import (
	"context"
	"sync/atomic"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/store/consumer"
)

// point is a moment in the life of a batch.
type point int

const (
	afterGuard      point = iota // nothing has been handled yet
	afterEffect                  // some of it has
	beforeStatement              // the handler's first statement is not sent
	afterStatement               // it has happened, its answer is lost
	beforeCommit                 // the COMMIT is not sent
	afterCommit
)

func (p point) String() string {
	return [...]string{history.AfterGuard, history.InBatch, history.BeforeStatement, history.AfterStatement, history.BeforeCommit, history.AfterCommit}[p]
}

// handler is the point of the handler before this one. From there on the connection injects.
func (p point) handler() point {
	switch p {
	case beforeStatement, afterStatement:
		return afterGuard
	case beforeCommit, afterCommit:
		return afterEffect
	}
	return p
}

// batchFailpoint is a fault that waits for a point of a batch.
type batchFailpoint struct {
	*network.Failpoint
	at point
}

// failpoints has the failpoint of a worker's next batch.
type failpoints struct {
	armed atomic.Pointer[batchFailpoint]
}

// arm sets a failpoint for the worker's next batch.
func (n *failpoints) arm(at point, inject func()) *network.Failpoint {
	p := network.NewFailpoint(inject)
	n.armed.Store(&batchFailpoint{p, at})
	return p
}

// reach is called by the handlers as they pass the points.
func (n *failpoints) reach(ctx context.Context, at point) {
	p := n.armed.Load()
	if p == nil || p.at.handler() != at || !n.armed.CompareAndSwap(p, nil) {
		return
	}
	if p.at == at {
		p.Fire()
		return
	}
	conn, _ := consumer.Conn(ctx)
	wire, err := network.ConnOf(conn)
	if err != nil { // never: all of a node's connections go through its network
		p.Fire()
		return
	}
	switch p.at {
	case beforeStatement, afterStatement:
		wire.AtStatement(p.at == afterStatement, p.Fire)
	default:
		wire.AtCommit(p.at == afterCommit, p.Fire)
	}
}
