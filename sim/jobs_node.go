package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// jobNode is a process as far as the database can tell: one worker of jobs, its
// connections, and the network between.
type jobNode struct {
	name    string // "worker 2.1": the first life of slot 2
	knobs   JobKnobs
	net     *network
	relay   *relay
	db      *sql.DB
	worker  *jobs.Worker
	notes   jobNotes
	history *history.History
	armed   atomic.Pointer[failpoint]
	gone    atomic.Bool // it was crashed: what its handlers still do, nobody hears
	silent  atomic.Bool // some of its connections have died in silence
	ran     bool        // as its slot saw

	dice   *rand.Rand // of all handlers
	dicing sync.Mutex

	cancel context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	err    error         // what it said; read after done
}

// jobNotes is where a worker's handlers and its observer take down what they did.
type jobNotes interface {
	begin(r history.JobRun) (number int)
	end(number int, outcome string)
	tell(t history.Told)
}

// jobLost is the state that the history has of a job that is another worker's.
const jobLost = "lost"

// newJobNode returns a node that has neither worker nor connections yet.
func newJobNode(s Scenario, name string, h *history.History, notes jobNotes) *jobNode {
	return &jobNode{name: name, knobs: *s.Jobs, history: h, notes: notes, dice: fault.Dice(s.Seed, "handlers "+name)}
}

// open gives the node its connections and its worker, which listens if there is a
// connection string for that.
func (n *jobNode) open(config *pgx.ConnConfig, listen string) {
	n.db = stdlib.OpenDB(*config)
	n.db.SetMaxOpenConns(n.knobs.Pool)
	n.db.SetMaxIdleConns(n.knobs.Pool)
	n.worker = jobs.NewWorker(n.db, n.handlers(), append(n.knobs.options(listen), jobs.WithObserver(n.observer()))...)
}

// startJobNode starts the life-th worker of a slot.
func startJobNode(ctx context.Context, s Scenario, on *database, h *history.History, book *jobBook, slot, life int) (*jobNode, error) {
	n := newJobNode(s, fmt.Sprintf("worker %d.%d", slot, life), h, book)
	r := fault.Dice(s.Seed, "node "+n.name)
	mode := oneOf(r, execModes...)
	n.net, n.done = newNetwork(r), make(chan struct{})
	config := on.config(n.name)
	config.DefaultQueryExecMode = mode
	if s.Faults[asyncWorkersOn] > 0 {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	listens := chance(r, n.knobs.Listeners)
	n.net.carry(config)
	var err error
	if n.relay, err = newRelay(config); err != nil {
		return nil, err
	}
	listen := ""
	if listens {
		listen = n.relay.url(config)
	}
	n.open(config, listen)
	book.add(n.name, n.id())
	ctx, n.cancel = context.WithCancel(ctx)
	go func() {
		defer close(n.done)
		n.err = n.worker.Start(ctx)
	}()
	return n, nil
}

func (n *jobNode) id() string { return n.worker.ID().String() }

// between draws a duration for a handler.
func (n *jobNode) between(low, high time.Duration) time.Duration {
	n.dicing.Lock()
	defer n.dicing.Unlock()
	return between(n.dice, low, high)
}

// observer writes down what the worker says of itself.
func (n *jobNode) observer() jobs.Observer {
	life := func(kind history.Kind) func(jobs.WorkerInfo) {
		return func(i jobs.WorkerInfo) {
			n.history.Add(n.name, "", kind, history.Life{ID: i.ID.String(), Error: textOf(i.Err)})
		}
	}
	return jobs.Observer{
		WorkerStarted: life(history.WorkerBegan),
		WorkerStopped: life(history.WorkerEnded),
		LeadershipChanged: func(l jobs.Leadership) {
			n.history.Add(n.name, "", map[bool]history.Kind{true: history.Leads, false: history.LeadsNoMore}[l.Leader], nil)
		},
		JobDone: func(d jobs.Done) {
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: d.ID, Attempt: d.Attempt, State: string(d.State)})
			n.history.Add(n.name, d.Queue, history.JobEnded, history.JobDone{ID: d.ID, Kind: d.Kind, Attempt: d.Attempt, State: string(d.State), TookMS: ms(d.Took), Error: textOf(d.Err)})
		},
		JobLost: func(h jobs.Header) {
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: h.ID, Attempt: h.Attempt, Lost: true})
			n.history.Add(n.name, h.Queue, history.JobEnded, history.JobDone{ID: h.ID, Kind: h.Kind, Attempt: h.Attempt, State: jobLost})
		},
	}
}

// reach is called by the handlers as they begin.
func (n *jobNode) reach() {
	if p := n.armed.Load(); p != nil && n.armed.CompareAndSwap(p, nil) {
		p.fire()
	}
}

// ready waits until the worker runs. It returns false if the worker, or ctx,
// ended before.
func (n *jobNode) ready(ctx context.Context) bool {
	for n.worker.Status().State != jobs.WorkerRunning {
		select {
		case <-n.done:
			return false
		default:
		}
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
	n.ran = true
	return true
}

// crash ends the process: no goodbye.
func (n *jobNode) crash(how func(*network)) {
	n.gone.Store(true)
	how(n.net)
	n.cancel()
}

// leaving is how long a stop takes beyond what the handlers are given: to store what
// became of their jobs, and to leave.
const leaving = 30 * time.Second

// await waits for the end of the worker that was asked to end. Nobody waits for a
// process that has crashed.
func (n *jobNode) await(asked string) history.Exit {
	x := history.Exit{Worker: n.name, Asked: asked, Bound: n.knobs.ShutdownTimeout + leaving}
	if asked == history.ExitCrashed {
		x.InTime = true
		return x
	}
	late := time.NewTimer(x.Bound)
	defer late.Stop()
	select {
	case <-n.done:
		x.InTime, x.Error = true, textOf(n.err)
		if n.silent.Load() && errors.Is(n.err, jobs.ErrUnsettled) {
			x.Asked = history.ExitOutage
		}
	case <-late.C:
	}
	return x
}

// cleanUp frees what a worker that has ended, or was given up, leaves behind.
func (n *jobNode) cleanUp() {
	n.cancel()
	n.net.cleanUp()
	n.relay.close()
	_ = n.db.Close() // its connections are broken as a rule
}
