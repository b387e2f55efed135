package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/embedded"
)

// limit ends what hangs: a run in which no job is handled for so long.
const limit = 30 * time.Second

// settings of the server: what acknowledges a commit keeps it, and no
// checkpoint falls into one run and not into the other.
func settings(o options) map[string]string {
	s := map[string]string{
		"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min",
	}
	if o.statements {
		s["shared_preload_libraries"] = "pg_stat_statements"
		s["pg_stat_statements.track_planning"] = "on"
		s["pg_stat_statements.track_utility"] = "on" // BEGIN and COMMIT count too
	}
	return s
}

// lab is where runs take place.
type lab struct {
	server  *embedded.Server
	options options
	stderr  io.Writer
}

// site is a database for one run.
type site struct {
	lab   *lab
	name  string
	label string // of the run, for progress
	db    *pgxpool.Pool
	tally *tally

	profile string // the file for a CPU profile, "": none

	spent spent       // by what is measured
	said  []statement // meanwhile
}

// run measures a contestant once.
func (l *lab) run(ctx context.Context, g group, c contestant, round int, label string) (r result, err error) {
	s, err := l.newSite(ctx, label)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.drop()) }()
	if round == 0 && l.options.profile != "" {
		s.profile = filepath.Join(l.options.profile, fileName(label)+".pprof")
	}
	p, err := c.side.open(ctx, s, c.config)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if r, err = g.measure(ctx, s, p); err != nil {
		return r, err
	}
	r.spent, r.said = s.spent, s.said
	return r, nil
}

// fileName makes a name for a file of a label.
func fileName(label string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, label)
}

func (l *lab) newSite(ctx context.Context, label string) (*site, error) {
	s := &site{lab: l, name: "peers_" + strings.ToLower(rand.Text()[:12]), label: label}
	if err := l.onServer(ctx, "CREATE DATABASE "+ident.Quote(s.name)); err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	config, err := pgxpool.ParseConfig(s.url())
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	config.MaxConns = 2
	if s.db, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	_, err = s.db.Exec(ctx, `CREATE TABLE effects (job bigint NOT NULL)`)
	if err == nil && l.options.statements {
		_, err = s.db.Exec(ctx, `CREATE EXTENSION pg_stat_statements`)
	}
	if err != nil {
		return nil, errors.Join(err, s.drop())
	}
	return s, nil
}

func (s *site) url() string { return s.lab.server.URL(s.name) }

func (s *site) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s.db.Close()
	return s.lab.onServer(ctx, "DROP DATABASE "+ident.Quote(s.name)+" WITH (FORCE)")
}

// onServer runs a statement that belongs to no site.
func (l *lab) onServer(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, l.server.URL(""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// settle lets the server do now what it would do in the midst of a run:
// statistics, visibility, dirty pages.
func (s *site) settle(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		return err
	}
	_, err := s.db.Exec(ctx, `CHECKPOINT`)
	return err
}

// measured runs what is measured, and notes what it cost.
func (s *site) measured(ctx context.Context, part func() error) (took time.Duration, err error) {
	if s.lab.options.statements {
		if _, err := s.db.Exec(ctx, `SELECT pg_stat_statements_reset()`); err != nil {
			return 0, err
		}
	}
	if s.profile != "" {
		stop, refused := profile(s.profile)
		if refused != nil {
			return 0, refused
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	before := s.lab.spent()
	began := time.Now()
	err = part()
	took = time.Since(began)
	s.spent = s.lab.spent().minus(before)
	if err == nil && s.lab.options.statements {
		s.said, err = s.statements(ctx)
	}
	return took, err
}

// profile writes a CPU profile of this process until it is stopped.
func profile(name string) (stop func() error, err error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// until polls until done holds, shows how many jobs have run, and gives up when
// none did for long.
func (s *site) until(ctx context.Context, what string, done func() (bool, error)) error {
	progress := command.NewProgress(s.lab.stderr)
	defer progress.Done()
	seen, moved := s.tally.total(), time.Now()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if n := s.tally.total(); n != seen {
			seen, moved = n, time.Now()
		} else if time.Since(moved) > limit {
			return fmt.Errorf("waited in vain for %s: %d jobs have run", what, n)
		}
		progress.Show(fmt.Sprintf("%s: %s jobs", s.label, grouped(seen)))
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// pause waits for d, or less if ctx ends: that is an error then.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
