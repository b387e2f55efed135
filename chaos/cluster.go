//go:build unix

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/network"
)

// Bounds of the harness, which are scaled to the machine.
const (
	recovery  = 90 * time.Second // for a server to be well again
	ending    = 30 * time.Second // for the servers to end
	answer    = 30 * time.Second // for a statement
	greeting  = 5 * time.Second  // for a connection
	attaching = time.Minute      // for a new replica, which copies the primary
)

// cluster is the servers of a run: a primary and, where a fault needs it, a replica
// that has everything that the primary has acknowledged.
type cluster struct {
	primary, standby *embedded.Server
	ports            []int        // of both, for good: clients know no others
	leads            atomic.Int64 // the port of the primary, for clients that ask a proxy
	password         string
	past             []byte // the logs of primaries that were killed for good
	bounds           harness.Bounds
}

// settings are for a primary whose replicas may lag for a moment.
func settings(connections int) map[string]string {
	return map[string]string{
		"max_connections":              strconv.Itoa(connections),
		"wal_level":                    "replica",
		"max_wal_senders":              "8",
		"wal_keep_size":                "256MB",
		"max_wal_size":                 "256MB",
		"wal_retrieve_retry_interval":  "200ms",
		"wal_receiver_status_interval": "1s",
		"wal_receiver_timeout":         "5s",
		"log_line_prefix":              "%m [%p] %a: ",
		"log_timezone":                 "UTC",
	}
}

// diskSize is more than a run writes in an hour.
const diskSize = 6 << 30

// startCluster starts the servers, and measures the machine. Kinds of faults that this
// machine cannot do are told, with the reason.
func startCluster(ctx context.Context, connections int, faults Faults, patience float64) (s *cluster, cannot map[string]error, err error) {
	s, cannot = &cluster{}, map[string]error{}
	config := embedded.Config{Own: true, Settings: settings(connections)}
	if faults["full-disk"] > 0 {
		config.Disk = diskSize
		if s.primary, err = embedded.Start(ctx, config); err != nil {
			cannot["full-disk"] = err
			config.Disk = 0
		}
	}
	if s.primary == nil {
		if s.primary, err = embedded.Start(ctx, config); err != nil {
			return nil, nil, err
		}
	}
	if strings.HasPrefix(s.primary.Version(), "13.") {
		cannot["hole"] = errors.New("PostgreSQL 13 does not notice in time that an idle connection is dead")
	}
	s.ports = []int{s.primary.Port()}
	s.leads.Store(int64(s.primary.Port()))
	parsed, err := pgx.ParseConfig(s.primary.URL(""))
	if err != nil {
		return nil, nil, errors.Join(err, s.stop(ctx))
	}
	s.password = parsed.Password
	if s.bounds, err = harness.Measure(ctx, parsed); err != nil {
		return nil, nil, errors.Join(err, s.stop(ctx))
	}
	s.bounds = s.bounds.Times(patience)
	if faults["promote"]+faults["standby"] > 0 {
		switch s.standby, err = s.attach(ctx, 0); {
		case errors.As(err, new(*testdeps.Error)):
			cannot["promote"], cannot["standby"] = err, err
			return s, cannot, nil
		case err != nil:
			return nil, nil, errors.Join(err, s.stop(ctx))
		}
		s.ports = append(s.ports, s.standby.Port())
		if err = s.synchronise(ctx); err != nil {
			return nil, nil, errors.Join(err, s.stop(ctx))
		}
	}
	return s, cannot, nil
}

// link is the network between a worker process and all servers.
func (s *cluster) link(seed uint64, process string) (*network.Link, error) {
	var addresses []func() string
	for _, p := range s.ports {
		addresses = append(addresses, func() string { return address(p) })
	}
	return network.NewLink(seed, process, addresses...)
}

// linkToPrimary has one address, which leads to the primary as a proxy's does.
func (s *cluster) linkToPrimary(seed uint64, process string) (*network.Link, error) {
	return network.NewLink(seed, process, func() string { return address(int(s.leads.Load())) })
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// url is the connection string for a database on whichever server is the
// primary. It holds the password.
func (s *cluster) url(database string) string {
	return s.urlThrough(database, s.ports) + " target_session_attrs=read-write"
}

// urlThrough leads to servers through ports, to the primary or not.
func (s *cluster) urlThrough(database string, through []int) string {
	hosts, ports := "127.0.0.1", strconv.Itoa(through[0])
	for _, p := range through[1:] {
		hosts, ports = hosts+",127.0.0.1", ports+","+strconv.Itoa(p)
	}
	return fmt.Sprintf("host=%s port=%s user=postgres password=%s dbname=%s sslmode=disable",
		hosts, ports, s.password, database)
}

// stop ends the servers, whatever state they are in.
func (s *cluster) stop(ctx context.Context) error {
	bound := s.bounds.Of(ending)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	var err error
	for _, server := range []*embedded.Server{s.primary, s.standby} {
		if server != nil {
			err = errors.Join(err, server.Stop(ctx))
		}
	}
	return harness.Failed("the stop of the servers", bound, err)
}

// attach starts a replica of the primary.
func (s *cluster) attach(ctx context.Context, port int) (*embedded.Server, error) {
	bound := s.bounds.Of(attaching)
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	standby, err := s.primary.Standby(bounded, port)
	if ctx.Err() != nil || errors.As(err, new(*testdeps.Error)) {
		return standby, err
	}
	return standby, harness.Failed("the start of a replica", bound, err)
}

// logs are what the servers have written, those of former primaries first.
func (s *cluster) logs() []bundle.Log {
	return []bundle.Log{
		{Name: "server.log", Text: io.MultiReader(bytes.NewReader(s.past), bytes.NewReader(logOf(s.primary)))},
		{Name: "replica.log", Text: bytes.NewReader(logOf(s.standby))},
	}
}

// logOf is what a server has written.
func logOf(server *embedded.Server) []byte {
	if server == nil {
		return nil
	}
	text, err := os.ReadFile(server.LogFile())
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// connect opens a session on the primary.
func (s *cluster) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.bounds.Of(greeting))
	defer cancel()
	config, err := pgx.ParseConfig(s.primary.URL(""))
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = "chaos"
	return pgx.ConnectConfig(ctx, config)
}

// on runs something in a session on the primary.
func (s *cluster) on(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.bounds.Of(answer))
	defer cancel()
	err = do(conn)
	_ = conn.Close(ctx) // or the server has
	return err
}

func (s *cluster) exec(ctx context.Context, statements ...string) error {
	return s.on(ctx, func(c *pgx.Conn) error {
		for _, statement := range statements {
			if _, err := c.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// tellStandby executes a statement on the replica.
func (s *cluster) tellStandby(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, s.bounds.Of(answer))
	defer cancel()
	conn, err := pgx.Connect(ctx, s.standby.URL(""))
	if err == nil {
		_, err = conn.Exec(ctx, statement)
		err = errors.Join(err, conn.Close(ctx))
	}
	if err != nil {
		return fmt.Errorf("chaos: the replica: %w", err)
	}
	return nil
}

// ask reports what a query on the primary says.
func (s *cluster) ask(ctx context.Context, query string, args ...any) (yes bool, err error) {
	err = s.on(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, query, args...).Scan(&yes) })
	return yes, err
}

// await asks until the answer is yes.
func (s *cluster) await(ctx context.Context, what, query string, args ...any) error {
	return s.until(ctx, what, func(ctx context.Context) (bool, error) { return s.ask(ctx, query, args...) })
}

func (s *cluster) until(ctx context.Context, what string, so func(context.Context) (bool, error)) error {
	bound := s.bounds.Of(recovery)
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for {
		yes, err := so(bounded)
		if err == nil && yes {
			return nil
		}
		if !backoff.Sleep(bounded, 20*time.Millisecond) {
			err = errors.Join(bounded.Err(), err)
			if ctx.Err() != nil {
				return err
			}
			return harness.Failed("waiting for "+what, bound, err)
		}
	}
}

const following = `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = 'walreceiver' AND state = 'streaming')`

// well waits until the primary takes writes and the replica follows. A
// postmaster that is gone is started again, also one that goes meanwhile: it
// gives up when its first recovery fails.
func (s *cluster) well(ctx context.Context) error {
	err := s.until(ctx, "the primary to take writes", func(ctx context.Context) (bool, error) {
		if !s.alive() {
			if err := s.primary.Restart(ctx); err != nil {
				return false, err
			}
		}
		return s.ask(ctx, `SELECT NOT pg_is_in_recovery()`)
	})
	if err != nil {
		return err
	}
	if s.standby == nil {
		return nil
	}
	return s.await(ctx, "the replica to follow the primary", following)
}

// alive reports whether there is a postmaster.
func (s *cluster) alive() bool { return syscall.Kill(s.primary.PID(), 0) == nil }

// synchronise makes the primary acknowledge only what the replica has. When it
// returns, it does: a session that knows the setting is younger than its
// announcement to the checkpointer, who tells everybody before it makes a
// checkpoint that is asked for later.
func (s *cluster) synchronise(ctx context.Context) error {
	if err := s.await(ctx, "the replica to follow the primary", following); err != nil {
		return err
	}
	if err := s.exec(ctx, `ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'`, `SELECT pg_reload_conf()`); err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	if err := s.await(ctx, "the setting to be known", `SELECT current_setting('synchronous_standby_names') = 'walreceiver'`); err != nil {
		return err
	}
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	return s.await(ctx, "the replica to be synchronous", `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
}

// caughtUp waits until the replica has everything that anybody can have seen on
// the primary, also what a crash has made visible before it was replicated.
func (s *cluster) caughtUp(ctx context.Context) error {
	var seen string
	err := s.on(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&seen) })
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	return s.await(ctx, "the replica to have caught up",
		`SELECT coalesce(bool_or(flush_lsn >= $1::text::pg_lsn), false) FROM pg_stat_replication WHERE sync_state = 'sync'`, seen)
}

// putBack puts the copy of the primary back.
func (s *cluster) putBack(ctx context.Context) error {
	old := s.standby
	s.standby = nil
	if old != nil {
		if err := old.Stop(ctx); err != nil {
			return err
		}
	}
	if err := s.primary.PutBack(ctx); err != nil || old == nil {
		return err
	}
	standby, err := s.attach(ctx, old.Port())
	if err != nil {
		return err
	}
	s.standby = standby
	return s.synchronise(ctx)
}
