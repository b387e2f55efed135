package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/pgfrontier/worker/internal/lab/subprocess"
)

// roleVariable in the environment makes this program another process of a
// scenario. Its value is a role as JSON.
const roleVariable = "BENCH_ROLE"

// role says what such a process does, and where. It prints what it found as
// JSON.
type role struct {
	Task   string // a name in tasks
	Name   string // also in pg_stat_activity
	URL    string
	Notify bool // the dispatcher; otherwise the default
	Batch  int  // WithBatchSize; 0: the default

	Consumers  int           // many
	Period     time.Duration // many
	Postmaster int           // its process id, 0 if it is not ours
	Jobs       int           // jobs: how many to run
	Flows      bool          // jobs: the worker advances flows
	Partitions int           // spread

	program string // that is started; empty: this one
}

func (r role) dispatcher() dispatcher {
	if r.Notify {
		return notify
	}
	return poll
}

// logger writes to where the output is kept.
func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

// process is another process of a scenario.
type process struct {
	*subprocess.Process
	name string
	out  bytes.Buffer // of found; to be read when it has ended
	log  subprocess.Tail
}

// start starts this program in a role on the site.
func (s *site) start(r role) (*process, error) {
	var err error
	if r.URL, err = named(s.url, r.Name); err != nil {
		return nil, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	program := r.program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p := &process{name: r.Name}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = &p.out, &p.log
	p.Process, err = subprocess.Start(cmd, nil)
	return p, err
}

// named returns a connection string whose sessions have a name.
func named(connString, name string) (string, error) {
	u, err := url.Parse(connString)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the connection string is no URL, which other processes are given") // it may hold a password
	}
	query := u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// end sends the process a signal and waits until it has ended. It fails if it
// did not end as that signal makes it, or ended before.
func (p *process) end(ctx context.Context, s os.Signal) error {
	if err := p.Signal(s); err != nil {
		return fmt.Errorf("%s ended too soon: %w\n%s", p.name, err, &p.log)
	}
	return p.wait(ctx, s == os.Kill)
}

func (p *process) wait(ctx context.Context, killed bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*limit, fmt.Errorf("waited in vain for %s to end", p.name))
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return context.Cause(ctx)
	}
	if state := p.State(); !killed && !state.Success() {
		return fmt.Errorf("%s: %v\n%s", p.name, state, &p.log)
	}
	return nil
}

// ask lets a process do something to its end, and returns what it found.
func ask[T any](ctx context.Context, s *site, r role) (found T, err error) {
	p, err := s.start(r)
	if err == nil {
		err = p.wait(ctx, false)
	}
	if err == nil {
		err = json.Unmarshal(p.out.Bytes(), &found)
	}
	return found, err
}
