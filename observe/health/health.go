// Package health answers the probes of an orchestrator for a worker: of events, of jobs,
// or of a jobs table of your own.
//
//	http.Handle("/livez", health.Live(w))
//	http.Handle("/readyz", health.Ready(w, 5*time.Minute))
//
// For several workers of a process, w is health.All(first, second).
//
// An answer is 200 and "ok", or 503 and one line for each reason, with its remedy. It
// is JSON, an object a line with the field "reason", if the request's Accept names
// application/json. The lines name hosts and roles as the driver's errors do, and no
// passwords: serve them where the orchestrator can reach them, and not the public.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Worker is what is probed: a Worker of package worker, jobs or jobs/table.
type Worker interface {
	// Live returns an error if only a new process helps.
	Live() error
	// Ready returns the reasons why the worker does not do all of its work, none if it does.
	Ready(ctx context.Context, maxAge time.Duration) []error
}

// All is several workers of one process as one: it is live if all are live, and ready if all are
// ready. It asks all at the same time.
func All(workers ...Worker) Worker { return all(workers) }

type all []Worker

func (a all) Live() error {
	var reasons []string
	for _, w := range a {
		if err := w.Live(); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return errors.New(strings.Join(reasons, "; "))
}

func (a all) Ready(ctx context.Context, maxAge time.Duration) []error {
	reasons := make([][]error, len(a))
	var asked sync.WaitGroup
	for i, w := range a {
		asked.Go(func() { reasons[i] = w.Ready(ctx, maxAge) })
	}
	asked.Wait()
	return slices.Concat(reasons...)
}

const (
	// defaultMaxAge is the maxAge of Ready if it is given none.
	defaultMaxAge = 5 * time.Minute
	// answerTimeout bounds what a probe waits for.
	answerTimeout = 10 * time.Second
)

// Live answers the probe for liveness: it fails when only a new process helps. It
// never asks the database, whose absence is no reason to restart.
func Live(w Worker) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var reasons []error
		if err := w.Live(); err != nil {
			reasons = []error{err}
		}
		answer(rw, r, reasons)
	})
}

// Ready answers the probe for readiness. It fails while the worker does not run, while
// the database is away, and while events are not handled as they should be. maxAge is
// for how long a consumer of this worker may not move though an event waits for it; 0
// or below is five minutes.
//
// A probe asks the database. Do not restart a worker because it is not ready: it retries
// whatever a retry can mend.
func Ready(w Worker, maxAge time.Duration) http.Handler {
	if maxAge <= 0 {
		maxAge = defaultMaxAge
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		answer(rw, r, w.Ready(ctx, maxAge))
	})
}

func answer(rw http.ResponseWriter, r *http.Request, reasons []error) {
	asJSON := strings.Contains(r.Header.Get("Accept"), "application/json")
	kind := "text/plain; charset=utf-8"
	if asJSON {
		kind = "application/json"
	}
	rw.Header().Set("Content-Type", kind)
	rw.Header().Set("Cache-Control", "no-store")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	if len(reasons) == 0 {
		if asJSON {
			_, _ = fmt.Fprintln(rw, "{}")
		} else {
			_, _ = fmt.Fprintln(rw, "ok")
		}
		return
	}
	rw.WriteHeader(http.StatusServiceUnavailable)
	for _, err := range reasons {
		line := strings.Join(strings.FieldsFunc(err.Error(), func(c rune) bool { return c == '\n' || c == '\r' }), " ")
		if asJSON {
			text, _ := json.Marshal(struct { // of a string it does not fail
				Reason string `json:"reason"`
			}{line})
			line = string(text)
		}
		_, _ = fmt.Fprintln(rw, line)
	}
}
