package frontier

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// Every read of the log returns the counter, whatever the store names.
func TestOnChangeIsCalledWhenTheCounterMoves(t *testing.T) {
	t.Parallel()
	for name, unnamed := range map[string]bool{"named sequence": false, "no sequence": true} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, d.DB)
			if unnamed {
				cfg.Log = eventLog{}
			}
			rung := make(chan struct{}, 100)
			cfg.OnChange = func() { rung <- struct{}{} }
			run(t, cfg)
			for range 2 {
				if err := changes.Notify(t.Context(), d.DB, cfg.Changes); err != nil {
					t.Fatal(err)
				}
				select {
				case <-rung:
				case <-time.After(patience):
					t.Fatalf("OnChange was not called within %v", patience)
				}
			}
		})
	}
}
