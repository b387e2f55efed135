package stage

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// Machine is what a worker of any kind runs on: its connections, and the network
// between it and the database.
type Machine struct {
	Name    string // "worker 2.1": the first life of slot 2
	Net     *network.Network
	Relay   *network.Relay
	DB      *sql.DB
	Plain   bool          // the driver of DB is not known to the library
	lender  *pgxpool.Pool // of DB, nil: it has connections of its own
	Config  *pgx.ConnConfig
	History *history.History
	Bounds  harness.Bounds
	ran     bool // as its slot saw

	Cancel context.CancelFunc
	Done   chan struct{} // closed when the worker has ended
	Err    error         // what it said; read after done
}

// Equipment is what a machine has.
type Equipment struct {
	Seed     uint64
	Pool     int                                 // connections
	Settings map[string]string                   // of its sessions, beside the usual ones
	Async    bool                                // it does not wait for its commits to be safe
	Plain    bool                                // if its slot has an even number, the pool gives on a connection as it was left
	Watch    func(c *pgx.ConnConfig, who string) // reads what its connections send; nil: nobody does
}

// NewMachine makes the machine of the life-th worker of a slot.
func NewMachine(e Equipment, on *server.Database, h *history.History, slot, life int) (m *Machine, err error) {
	r := fault.Dice(e.Seed, fmt.Sprintf("node %d.%d", slot, life))
	mode := fault.OneOf(r, network.ExecModes...)
	m = &Machine{Name: fmt.Sprintf("worker %d.%d", slot, life), History: h, Bounds: on.Bounds, Net: network.New(r), Done: make(chan struct{})}
	m.Config = on.Config(m.Name)
	m.Config.DefaultQueryExecMode = mode
	if e.Async {
		m.Config.RuntimeParams["synchronous_commit"] = "off"
	}
	maps.Copy(m.Config.RuntimeParams, e.Settings)
	if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol { // workers refuse these, if values are sent as text
		delete(m.Config.RuntimeParams, "DateStyle")
		delete(m.Config.RuntimeParams, "bytea_output")
	}
	m.Net.Carry(m.Config)
	if e.Watch != nil {
		e.Watch(m.Config, m.Name)
	}
	if m.Relay, err = network.NewRelay(m.Config); err != nil {
		return nil, err
	}
	m.Plain = e.Plain && slot%2 == 0
	switch own := fault.Dice(e.Seed, "pool of "+m.Name).IntN(2) == 0; {
	case m.Plain:
		m.DB = sized(network.OpenPlain(m.Config), e.Pool)
	case own:
		m.DB = OpenPool(m.Config, e.Pool)
	default:
		err = m.borrow(e.Pool)
	}
	return m, err
}

// borrow gives the machine so many connections of a pool of pgx.
func (m *Machine) borrow(connections int) (err error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return err
	}
	config.ConnConfig = m.Config
	config.MaxConns = int32(connections) + 1
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.RuntimeParams = m.Config.RuntimeParams // the worker adds its own, and the pool has a copy
		return nil
	}
	if m.lender, err = pgxpool.NewWithConfig(context.Background(), config); err == nil {
		m.DB = pgxtx.DB(m.lender)
	}
	return err
}

// OpenPool opens a pool that keeps so many connections open.
func OpenPool(config *pgx.ConnConfig, connections int) *sql.DB {
	return sized(stdlib.OpenDB(*config), connections)
}

func sized(db *sql.DB, connections int) *sql.DB {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// Role is what a worker process of a run needs to know beside the scenario.
type Role struct {
	Name    string    // in the history: "worker 2.1"
	URL     string    // of the run's database; secret
	Version int64     // of the program
	Began   time.Time // the run, by the clock of the machine
}

// OwnProcess returns the machine of a worker that has a process of its own, with so many
// connections. Nothing lies between it and the database.
func OwnProcess(name string, h *history.History, config *pgx.ConnConfig, pool int) *Machine {
	return &Machine{Name: name, History: h, DB: OpenPool(config, pool)}
}

// Listening is the connection string by which the worker listens.
func (m *Machine) Listening() string { return m.Relay.URL(m.Config) }

// Launch starts the worker.
func (m *Machine) Launch(ctx context.Context, start func(context.Context) error) {
	ctx, m.Cancel = context.WithCancel(ctx)
	go func() {
		defer close(m.Done)
		m.Err = start(ctx)
	}()
}

func (m *Machine) Itself() *Machine { return m }

// AwaitRunning waits until the worker runs. It returns false if the worker, or ctx,
// ended before.
func (m *Machine) AwaitRunning(ctx context.Context, runs func() bool) bool {
	for !runs() {
		select {
		case <-m.Done:
			return false
		default:
		}
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
	m.ran = true
	return true
}

// AwaitEnd waits for the end of the worker that was asked to end, and says how it came.
func (m *Machine) AwaitEnd(asked string, bound time.Duration) history.Exit {
	x := history.Exit{Worker: m.Name, Asked: asked, Bound: bound}
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case <-m.Done:
		x.InTime, x.Error = true, history.TextOf(m.Err)
	case <-late.C:
	}
	return x
}

// cleanUp frees what a worker that has ended, or was given up, leaves behind.
func (m *Machine) cleanUp() {
	m.Cancel()
	m.Net.CleanUp()
	m.Relay.Close()
	_ = m.DB.Close() // its connections are broken as a rule
	if m.lender != nil {
		m.lender.Close()
	}
}

// Connect opens a pool of one connection for an actor of the harness, through a network of its
// own. The dice draw how it sends statements. With async it does not wait for its commits to be
// safe.
func Connect(d *server.Database, who string, dice *rand.Rand, async bool) (*network.Network, *sql.DB) {
	config := d.Config(who)
	config.RuntimeParams["lock_timeout"] = "150ms" // for what another transaction holds
	config.DefaultQueryExecMode = fault.OneOf(dice, network.ExecModes...)
	if async {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	n := network.New(nil)
	n.Carry(config)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1) // a fault then breaks the connection in use
	return n, db
}
