package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/embedded"
)

// rebalances traces the leader: how long it thinks before it
// writes assignments, and how long it writes them.
type rebalances struct {
	mu               sync.Mutex
	idle             map[*pgx.Conn]time.Time // since when
	writing          map[*pgx.Conn]time.Time // since when
	thought, written durations
}

func (r *rebalances) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "AS w(unit text, worker uuid)") {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.writing[conn] = time.Now()
		r.thought = append(r.thought, r.writing[conn].Sub(r.idle[conn]))
	}
	return ctx
}

func (r *rebalances) TraceQueryEnd(_ context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle[conn] = time.Now()
	if began, ok := r.writing[conn]; ok {
		r.written = append(r.written, time.Since(began))
		delete(r.writing, conn)
	}
}

// begin forgets what was traced so far.
func (r *rebalances) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.thought, r.written = nil, nil
}

func (r *rebalances) results() (thought, written durations) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.thought, r.written
}

// group are coordinators that all have code for the same units.
type group struct {
	config  *pgx.ConnConfig
	units   []string
	members []*member
}

// member is a worker's part in the coordination, and nothing else of it.
type member struct {
	*coord.Coordinator
	db   *sql.DB
	stop func() error
}

// add adds members, up to n.
func (g *group) add(ctx context.Context, n int) error {
	added := make([]*member, n-len(g.members))
	errs := make([]error, len(added))
	var all sync.WaitGroup
	for i := range added {
		all.Go(func() { added[i], errs[i] = g.newMember(ctx) })
	}
	all.Wait()
	for _, m := range added {
		if m != nil {
			g.members = append(g.members, m)
		}
	}
	return errors.Join(errs...)
}

func (g *group) newMember(ctx context.Context) (*member, error) {
	d := worker.DefaultConfig()
	db := stdlib.OpenDB(*g.config)
	m := &member{db: db, Coordinator: coord.New(coord.Config{
		Column: "consumers",
		DB:     db, ID: uuid.New(), Units: g.units,
		Nodes: ident.Table{Name: "worker_nodes"}, Stopped: ident.Table{Name: "consumer_past_workers"}, Assignments: ident.Table{Name: "consumer_assignments"},
		Checkpoints: ident.Table{Name: "consumer_checkpoints"}, Leader: ident.Table{Name: "worker_leader_election"},
		Changes:           ident.Table{Name: "consumer_checkpoints_changes"},
		Token:             ident.Table{Name: "consumer_checkpoints_token"},
		HeartbeatInterval: d.HeartbeatInterval, HeartbeatTimeout: d.HeartbeatTimeout, RebalanceInterval: d.RebalanceInterval,
	})}
	if err := m.Register(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- m.Run(running) }()
	m.stop = func() error {
		cancel()
		err := <-ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(err, m.Leave(ctx, false), db.Close())
	}
	return m, nil
}

// remove lets the last n members leave.
func (g *group) remove(n int) error {
	left := len(g.members) - n
	errs := make([]error, n)
	var all sync.WaitGroup
	for i, m := range g.members[left:] {
		all.Go(func() { errs[i] = m.stop() })
	}
	all.Wait()
	g.members = g.members[:left]
	return errors.Join(errs...)
}

// balance waits until every unit belongs to one member, and all have the same
// number of them, or one more.
func (g *group) balance(ctx context.Context) error {
	each := len(g.units) / len(g.members)
	return until(ctx, fmt.Sprintf("%d workers to share %d consumers", len(g.members), len(g.units)), func() bool {
		owned := map[string]bool{}
		n := 0
		for _, m := range g.members {
			mine := m.Assigned()
			if len(mine) < each || len(mine) > each+1 {
				return false
			}
			for _, u := range mine {
				owned[u] = true
			}
			n += len(mine)
		}
		return n == len(g.units) && len(owned) == n
	})
}

// scale measures the coordination of many workers, on a server of its own that
// admits them. There is nothing but the coordination: neither frontiers nor
// consumers.
func scale(ctx context.Context, l *lab) (rows []row, err error) {
	most := l.size.groups[len(l.size.groups)-1]
	err = l.onOwnServer(ctx, map[string]string{"max_connections": strconv.Itoa(3*most + 50)}, func(l *lab) error {
		return l.onSite(ctx, func(s *site) error {
			// As the frontier of a worker does.
			if _, err := s.db.ExecContext(ctx, `
INSERT INTO consumer_checkpoints_token (token, database)
SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`); err != nil {
				return err
			}
			s.wires = &wires{}
			traced := &rebalances{idle: map[*pgx.Conn]time.Time{}, writing: map[*pgx.Conn]time.Time{}}
			g := &group{}
			for i := range l.size.units {
				g.units = append(g.units, fmt.Sprintf("consumer_%04d", i))
			}
			var err error
			if g.config, err = s.config(); err != nil {
				return err
			}
			g.config.BuildFrontend, g.config.Tracer = s.wires.frontend, traced
			rows, err = g.measure(ctx, s, traced)
			return errors.Join(err, g.remove(len(g.members)))
		})
	})
	return rows, err
}

// onOwnServer runs a part of a scenario on a server of its own.
func (l *lab) onOwnServer(ctx context.Context, settings map[string]string, part func(*lab) error) (err error) {
	server, err := embedded.Start(ctx, embedded.Config{Own: true, OnDisk: true, Settings: settings})
	if err != nil {
		return err
	}
	err = part(&lab{server: server, size: l.size})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return errors.Join(err, server.Stop(ctx))
}

func (g *group) measure(ctx context.Context, s *site, traced *rebalances) (rows []row, err error) {
	var first float64
	for i, n := range s.lab.size.groups {
		if err := errors.Join(g.add(ctx, n), g.balance(ctx)); err != nil {
			return rows, err
		}
		rate, err := g.atRest(ctx, s)
		if err != nil {
			return rows, err
		}
		each := rate / float64(n)
		x := row{part: fmt.Sprintf("at rest, workers: %d", n), measured: fmt.Sprintf("%.1f statements/s, %.2f a worker", rate, each), counted: len(g.units)}
		if i == 0 {
			first = each
		} else {
			x.goal, x.reached = fmt.Sprintf("<= 1.1 x %.2f a worker", first), each <= 1.1*first
		}
		rows = append(rows, x)
	}
	more, err := g.rebalance(ctx, s.lab.size.rebalances, traced)
	return append(rows, more...), err
}

// atRest counts statements a second once everybody knows everybody.
func (g *group) atRest(ctx context.Context, s *site) (rate float64, err error) {
	if err := pause(ctx, s.lab.size.rest/2); err != nil {
		return 0, err
	}
	began, statements := time.Now(), s.wires.statements.Load()
	if err := pause(ctx, s.lab.size.rest); err != nil {
		return 0, err
	}
	return float64(s.wires.statements.Load()-statements) / time.Since(began).Seconds(), nil
}

// rebalance lets a worker leave and another one come, again and again.
func (g *group) rebalance(ctx context.Context, times int, traced *rebalances) (rows []row, err error) {
	n := len(g.members)
	traced.begin()
	var took durations
	for range times {
		began := time.Now()
		if err := errors.Join(g.remove(1), g.balance(ctx)); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		began = time.Now()
		if err := errors.Join(g.add(ctx, n), g.balance(ctx)); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	thought, written := traced.results()
	part := fmt.Sprintf("%d workers, %s consumers, one comes or leaves: ", n, grouped(len(g.units)))
	return []row{
		{part: part + "computed in", measured: thought.few(), goal: "max < 50 ms", reached: thought.max() < 50*time.Millisecond, counted: 2 * times * len(g.units)},
		{part: part + "written in", measured: written.few(), goal: "max < 1 s", reached: written.max() < time.Second},
		{part: "until every worker knows, by polls alone", measured: took.few()},
	}, nil
}
