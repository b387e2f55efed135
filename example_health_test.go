package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// health answers an orchestrator's probes from a worker's Status.
type health struct {
	worker   *worker.Worker
	patience time.Duration // for heartbeats, and for Safe to move; 1m suits the defaults

	mu    sync.Mutex
	safe  int64
	since time.Time // when Safe last moved, or had nowhere to go
}

// live fails when only a new process helps. All else the worker mends by itself
// as soon as it can: a database that is away is no reason to restart.
func (h *health) live() error {
	if h.worker.Status().State == worker.StateStopped {
		return errors.New("the worker has stopped")
	}
	return nil
}

// ready fails while events are not handled as they should be: above all while
// the head of the log moves and Safe, up to which consumers may read, does not.
func (h *health) ready() error {
	s := h.worker.Status()
	switch beaten := time.Since(s.LastHeartbeat); {
	case s.State != worker.StateRunning:
		return fmt.Errorf("the worker is %s", s.State)
	case s.FrontierError != nil:
		return s.FrontierError
	case s.CoordinationError != nil:
		return s.CoordinationError
	case beaten > h.patience:
		return fmt.Errorf("the last heartbeat was %v ago", beaten)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.Safe != h.safe || s.Head <= s.Safe || h.since.IsZero() {
		h.safe, h.since = s.Safe, time.Now()
	}
	if still := time.Since(h.since); still > h.patience {
		err := fmt.Errorf("safe has been at %d for %v, and the head of the log is at %d", s.Safe, still, s.Head)
		for _, b := range s.Blocked {
			err = fmt.Errorf("%w; %s", err, b.Remedy())
		}
		return err
	}
	return nil
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
}

// Liveness and readiness for an orchestrator.
func Example_health() {
	var db *sql.DB
	var consumers []consumer.Consumer
	w := worker.New(db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), consumers)
	h := &health{worker: w, patience: time.Minute}
	http.HandleFunc("/livez", probe(h.live))
	http.HandleFunc("/readyz", probe(h.ready))
	go func() { log.Fatal(http.ListenAndServe(":8080", nil)) }()
	if err := w.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
}
