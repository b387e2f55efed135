package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/oracle"
)

// host is the server on which runs are made, one after the other. A server of its own
// that a run may have left down is replaced before the next.
type host struct {
	db          string // of the command line
	connections int    // that a run may open
	stderr      io.Writer

	server *embedded.Server // nil: the last start failed
	spent  bool             // it may be down
	bounds harness.Bounds   // as the last run has measured them
	keep   *keeper
}

// Bounds of the harness, which are scaled to the machine.
const (
	startBound = time.Minute
	stopBound  = 30 * time.Second
)

// newHost starts a server, or finds one. The caller stops the host.
func (o options) newHost(ctx context.Context, connections int, stderr io.Writer) (*host, error) {
	h := &host{db: o.db, connections: connections, stderr: stderr, keep: &keeper{place: o.keep}}
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(stderr, "PostgreSQL %s: %s\n", h.server.Version(), h.server.Source())
	return h, nil
}

func (h *host) start(ctx context.Context) (err error) {
	h.server, err = embedded.Start(ctx, embedded.Config{URL: h.db, Settings: map[string]string{
		"max_connections": strconv.Itoa(100 + 2*h.connections),
		"log_line_prefix": "%m [%p] %a: ",
		// For its standbys.
		"wal_level":                   "replica",
		"max_wal_senders":             "8",
		"wal_retrieve_retry_interval": "200ms",
		"log_timezone":                "UTC",
	}})
	if err == nil {
		h.keep.log, h.spent = h.server.LogFile(), false
	}
	return err
}

// stop stops the server, also after the end of ctx.
func (h *host) stop(ctx context.Context) error {
	if h.server == nil {
		return nil
	}
	bound := h.bounds.Of(stopBound)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	server := h.server
	h.server = nil
	return harness.Failed("the stop of the server", bound, server.Stop(ctx))
}

// ready replaces a server that may be down.
func (h *host) ready(ctx context.Context, patience float64) error {
	if h.server != nil && (!h.spent || h.server.PID() == 0) {
		return nil
	}
	bound := h.bounds.Times(patience).Of(startBound)
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return harness.Failed("the start of another server", bound, errors.Join(h.stop(ctx), h.start(bounded)))
}

// run makes a run. One that was not judged is repeated once.
func (h *host) run(ctx context.Context, c sim.Config) (*oracle.Report, error) {
	return sim.Judged(func(patience float64) (*oracle.Report, error) {
		c.Patience = patience
		if err := h.ready(ctx, patience); err != nil {
			return sim.NotStarted(ctx, c, err)
		}
		c.URL, c.Server = h.server.URL(""), nil
		if h.server.PID() != 0 { // its own
			c.Server = h.server
		}
		h.keep.begin()
		r, err := sim.Run(ctx, c)
		if r != nil {
			h.bounds = harness.Bounds{Slowness: r.Slowness}
			h.spent = r.Evidence.Harness != nil
		}
		if r != nil && r.Outcome == oracle.NotJudged && patience == 1 {
			fmt.Fprintf(h.stderr, "seed %d: %s; it is repeated with twice the time\n", r.Seed, r.Verdict)
		}
		return r, err
	})
}
