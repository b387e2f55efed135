package sim

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
)

// machine is what a worker of any kind runs on: its connections, and the network
// between it and the database.
type machine struct {
	name    string // "worker 2.1": the first life of slot 2
	net     *network
	relay   *relay
	db      *sql.DB
	config  *pgx.ConnConfig
	history *history.History
	bounds  harness.Bounds
	armed   atomic.Pointer[failpoint]
	ran     bool // as its slot saw

	cancel context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	err    error         // what it said; read after done
}

// newMachine makes that of the life-th worker of a slot, with so many connections.
func newMachine(s Scenario, on *database, h *history.History, slot, life, pool int) (m *machine, err error) {
	r := fault.Dice(s.Seed, fmt.Sprintf("node %d.%d", slot, life))
	mode := oneOf(r, execModes...)
	m = &machine{name: fmt.Sprintf("worker %d.%d", slot, life), history: h, bounds: on.bounds, net: newNetwork(r), done: make(chan struct{})}
	m.config = on.config(m.name)
	m.config.DefaultQueryExecMode = mode
	if s.Faults[asyncWorkersOn] > 0 {
		m.config.RuntimeParams["synchronous_commit"] = "off"
	}
	maps.Copy(m.config.RuntimeParams, s.settings)
	if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol { // workers refuse these, if values are sent as text
		delete(m.config.RuntimeParams, "DateStyle")
		delete(m.config.RuntimeParams, "bytea_output")
	}
	m.net.carry(m.config)
	s.watchMerges(m.config, h, m.name)
	if m.relay, err = newRelay(m.config); err != nil {
		return nil, err
	}
	// Not where handlers end their transactions: that is found at once only with drivers that the
	// library knows, and the oracle expects it.
	if s.Faults[leftRow.Name] > 0 && s.Faults["contract"] == 0 && slot%2 == 0 {
		m.db = sized(sql.OpenDB(plainConnector{stdlib.GetConnector(*m.config)}), pool)
	} else {
		m.db = openPool(m.config, pool)
	}
	return m, nil
}

// openPool opens a pool that keeps so many connections open.
func openPool(config *pgx.ConnConfig, connections int) *sql.DB {
	return sized(stdlib.OpenDB(*config), connections)
}

func sized(db *sql.DB, connections int) *sql.DB {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// plainConnector makes connections as most drivers do. They give one on which a transaction was
// left open to the next caller, where pgx closes it, and the library does not know them.
type plainConnector struct{ driver.Connector }

func (c plainConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return plainConn{conn.(*stdlib.Conn)}, nil
}

type plainConn struct{ *stdlib.Conn }

func (c plainConn) ResetSession(context.Context) error {
	if c.Conn.Conn().IsClosed() {
		return driver.ErrBadConn
	}
	return nil
}

// listening is the connection string by which the worker listens.
func (m *machine) listening() string { return m.relay.url(m.config) }

// launch starts the worker.
func (m *machine) launch(ctx context.Context, start func(context.Context) error) {
	ctx, m.cancel = context.WithCancel(ctx)
	go func() {
		defer close(m.done)
		m.err = start(ctx)
	}()
}

func (m *machine) itself() *machine { return m }

// awaitRunning waits until the worker runs. It returns false if the worker, or ctx,
// ended before.
func (m *machine) awaitRunning(ctx context.Context, runs func() bool) bool {
	for !runs() {
		select {
		case <-m.done:
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

// awaitEnd waits for the end of the worker that was asked to end, and says how it came.
func (m *machine) awaitEnd(asked string, bound time.Duration) history.Exit {
	x := history.Exit{Worker: m.name, Asked: asked, Bound: bound}
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case <-m.done:
		x.InTime, x.Error = true, textOf(m.err)
	case <-late.C:
	}
	return x
}

// cleanUp frees what a worker that has ended, or was given up, leaves behind.
func (m *machine) cleanUp() {
	m.cancel()
	m.net.cleanUp()
	m.relay.close()
	_ = m.db.Close() // its connections are broken as a rule
}
