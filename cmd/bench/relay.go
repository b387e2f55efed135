package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

const (
	shared   = 6                     // consumers that two processes share
	rhythm   = 10 * time.Millisecond // between two appends
	signedBy = `
CREATE TABLE started (process TEXT, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
CREATE TABLE signed (consumer TEXT, position BIGINT, process TEXT, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON signed (process, consumer, at)`
)

// signing is a consumer that writes down what it was given, where, and when by
// the clock of the database.
type signing struct{ name, process string }

func (s *signing) Name() string { return s.name }

func (s *signing) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO signed (consumer, position, process) VALUES ($1, $2, $3)`, s.name, e.GlobalPosition, s.process)
	return err
}

// shareTask runs a worker until the process is asked to end.
func shareTask(ctx context.Context, r role) (any, error) {
	db, err := sql.Open("pgx", r.URL)
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	defer db.Close()
	db.SetMaxIdleConns(idleConns(shared))
	var consumers []consumer.Consumer
	for _, other := range newRecorders(shared) {
		consumers = append(consumers, &signing{other.name, r.Name})
	}
	s := &site{url: r.URL}
	w := worker.New(db, storepostgres.NewStore(nil), consumers, append(r.dispatcher().options(s), worker.WithSlog(logger()))...)
	if _, err := db.ExecContext(ctx, `INSERT INTO started (process) VALUES ($1)`, r.Name); err != nil {
		return nil, err
	}
	return nil, w.Start(ctx)
}

// relay has one process join another, then ends the one that was there before,
// which leads; then the next joins, and so on.
type relay struct {
	*site
	j     *journal
	d     dispatcher
	sig   os.Signal // that ends them
	names []string  // of the consumers
	count int       // processes so far
	runs  []*process

	loaded durations // from the start of a process to its call of Start
	joined durations // from that call until it had handled an event of its share of the consumers
	taken  durations // from the signal until the other had handled an event of every consumer
}

// handOver runs a relay, and returns how many deliveries were right.
func (l *lab) handOver(ctx context.Context, d dispatcher, sig os.Signal) (r *relay, counted int, err error) {
	err = l.onSite(ctx, func(s *site) (err error) {
		if _, err := s.db.ExecContext(ctx, signedBy); err != nil {
			return err
		}
		r = &relay{site: s, j: newJournal(s, d.channel), d: d, sig: sig}
		for _, c := range newRecorders(shared) {
			r.names = append(r.names, c.name)
		}
		writing, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- r.write(writing) }()
		err = r.run(ctx)
		stop()
		if err = errors.Join(err, <-ended); err == nil {
			counted, err = r.audit(ctx)
		}
		for _, p := range r.runs {
			p.Kill()
		}
		return err
	})
	return r, counted, err
}

// write appends steadily until ctx ends.
func (r *relay) write(ctx context.Context) error {
	tick := time.NewTicker(rhythm)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := r.j.append(context.WithoutCancel(ctx), true); err != nil {
				return fmt.Errorf("append: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// run makes the rounds. The first one does not count: the token of the log is
// made there, without which a lock says nothing.
func (r *relay) run(ctx context.Context) error {
	for range 2 {
		if err := r.join(ctx); err != nil {
			return err
		}
	}
	for round := range r.lab.size.handovers + 1 {
		if round == 1 {
			r.loaded, r.joined, r.taken = r.loaded[:0], r.joined[:0], r.taken[:0]
		}
		if round > 0 {
			if err := r.join(ctx); err != nil {
				return err
			}
		}
		if err := r.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}

// join starts a process and waits until it handles its share.
func (r *relay) join(ctx context.Context) error {
	share := shared / (len(r.runs) + 1)
	r.count++
	began, err := r.clock(ctx)
	if err != nil {
		return err
	}
	p, err := r.start(role{Task: "share", Name: fmt.Sprintf("process-%d", r.count), Notify: r.d.name == notify.name})
	if err != nil {
		return err
	}
	r.runs = append(r.runs, p)
	at, err := r.handles(ctx, p, share, began)
	if err != nil {
		return err
	}
	var started time.Time
	if err := r.db.QueryRowContext(ctx, `SELECT at FROM started WHERE process = $1::text`, p.name).Scan(&started); err != nil {
		return err
	}
	r.loaded = append(r.loaded, started.Sub(began))
	r.joined = append(r.joined, at.Sub(started))
	return nil
}

// leave ends the first process and waits until the other handles everything.
func (r *relay) leave(ctx context.Context) error {
	first, second := r.runs[0], r.runs[1]
	if err := r.leads(ctx, first); err != nil {
		return err
	}
	began, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := first.end(ctx, r.sig); err != nil {
		return err
	}
	r.runs = r.runs[1:]
	at, err := r.handles(ctx, second, shared, began)
	r.taken = append(r.taken, at.Sub(began))
	return err
}

func (r *relay) clock(ctx context.Context) (now time.Time, err error) {
	err = r.db.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&now)
	return now, err
}

// handles waits until the process has handled an event of so many consumers
// since then, and returns when it first had.
func (r *relay) handles(ctx context.Context, p *process, consumers int, since time.Time) (at time.Time, err error) {
	what := fmt.Sprintf("%s to handle %d consumers", p.name, consumers)
	waited := eventually(ctx, what, func() (bool, error) {
		var n int
		var last sql.NullTime
		err := r.db.QueryRowContext(ctx, `
SELECT count(at), max(at) FROM (SELECT unnest($1::text[]) AS consumer) AS c, LATERAL (
	SELECT at FROM signed WHERE process = $2 AND signed.consumer = c.consumer AND at >= $3 ORDER BY at LIMIT 1) AS first`,
			r.names, p.name, since).Scan(&n, &last)
		at = last.Time
		return n >= consumers, err
	})
	if waited != nil {
		waited = fmt.Errorf("%w\n%s", waited, &p.log)
	}
	return at, waited
}

// leads waits until the process leads.
func (r *relay) leads(ctx context.Context, p *process) error {
	return eventually(ctx, p.name+" to lead", func() (leads bool, err error) {
		err = r.db.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted
	AND datname = current_database() AND application_name = $1::text)`, p.name).Scan(&leads)
		return leads, err
	})
}

// audit waits until everything is handled, and checks that it was once.
func (r *relay) audit(ctx context.Context) (counted int, err error) {
	head, _ := r.j.head()
	want := r.j.count()
	for _, name := range r.names {
		var n, distinct int
		err := eventually(ctx, name+" to handle the last event", func() (done bool, err error) {
			err = r.db.QueryRowContext(ctx, `
SELECT count(*), count(DISTINCT position), coalesce(max(position) >= $2, false) FROM signed WHERE consumer = $1`, name, head).Scan(&n, &distinct, &done)
			return done, err
		})
		if err != nil {
			return 0, err
		}
		if n != want || distinct != want {
			return 0, fmt.Errorf("%s handled %d events, %d different ones, should be %d", name, n, distinct, want)
		}
		counted += n
	}
	return counted, nil
}

// limited is a goal for the 95th percentile.
func limited(part string, d durations, most time.Duration, counted int) row {
	return row{part: part, measured: d.few(), goal: "p95 <= " + short(most), reached: d.p95() <= most, counted: counted}
}
