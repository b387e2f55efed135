package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/embedded"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// simulate makes the runs on one server.
func simulate(ctx context.Context, o options, stdout, stderr io.Writer) (reports []*oracle.Report, err error) {
	server, err := o.serve(ctx, stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop(ctx, server)) }()
	show, keep := command.NewProgress(stderr), newKeeper(o, server)
	for i := range o.runs {
		c := on(server, o.config)
		c.Seed, c.Progress = o.config.Seed+uint64(i), func(p sim.Progress) { show.Show(o.progress(p)) }
		keep.begin()
		report, err := sim.Run(ctx, c)
		show.Done()
		if report != nil {
			o.sayHow(report)
			reports = append(reports, report)
			forget(reports)
			if !o.json {
				err = errors.Join(err, write(stdout, report, o.runs > 1))
			}
			err = errors.Join(err, keep.end(report, stderr))
		}
		if err != nil {
			return reports, err
		}
	}
	if o.runs > 1 && !o.json {
		err = oracle.Sum(reports).WriteText(stdout)
	}
	return reports, err
}

func (o options) progress(p sim.Progress) string {
	if o.config.Jobs {
		return fmt.Sprintf("%5.1fs  %6d jobs enqueued, %6d completed, %5d due, %3d crashes", p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag, p.Crashes)
	}
	return fmt.Sprintf("%5.1fs  %6d events appended, %6d handled by every consumer, lag %5d, %3d crashes",
		p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag, p.Crashes)
}

// serve starts the server, or finds it. The caller stops it.
func (o options) serve(ctx context.Context, stderr io.Writer) (*embedded.Server, error) {
	server, err := embedded.Start(ctx, embedded.Config{URL: o.db, Settings: map[string]string{
		"max_connections": strconv.Itoa(100 + 2*o.config.Connections()),
		"log_line_prefix": "%m [%p] %a: ",
		// For its standbys.
		"wal_level":                   "replica",
		"max_wal_senders":             "8",
		"wal_retrieve_retry_interval": "200ms",
		"log_timezone":                "UTC",
	}})
	if err == nil {
		fmt.Fprintf(stderr, "PostgreSQL %s: %s\n", server.Version(), server.Source())
	}
	return server, err
}

func stop(ctx context.Context, server *embedded.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return server.Stop(ctx)
}

// on is a run on a server.
func on(server *embedded.Server, c sim.Config) sim.Config {
	c.URL = server.URL("")
	if server.PID() != 0 { // its own
		c.Server = server
	}
	return c
}

// sayHow completes the commands that a report names. The string of -db may hold
// a password, so it is not printed.
func (o options) sayHow(r *oracle.Report) {
	if o.db != "" {
		r.Repeat += " -db ..."
	}
	r.Reduce = r.Repeat + " -reduce 5m"
}

// forget drops the evidence of all reports but the telling one, so that a long
// campaign does not fill the memory.
func forget(reports []*oracle.Report) {
	for _, r := range reports[:len(reports)-1] {
		if r != telling(reports) {
			r.Evidence = nil
		}
	}
}

// write prints a report; one of several that held takes one line.
func write(w io.Writer, r *oracle.Report, oneOfSeveral bool) error {
	if oneOfSeveral && r.Held {
		_, err := fmt.Fprintf(w, "seed %d: %s, in %.1fs\n", r.Seed, r.Verdict, r.Seconds)
		return err
	}
	return r.WriteText(w)
}

// telling is the report worth looking at: the first that broke, or the last.
func telling(reports []*oracle.Report) *oracle.Report {
	for _, r := range reports {
		if !r.Held && !r.Interrupted {
			return r
		}
	}
	if len(reports) == 0 {
		return nil
	}
	return reports[len(reports)-1]
}
