package bundle

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// senseless finds what no run can have left, and what the oracle counts on: an
// epoch that never was. It names the file and line of the first.
func senseless(dir string, e *history.Evidence) (err error) {
	resets := map[string]int64{} // of a consumer and its units
	title := func(name string) string { name, _, _ = strings.Cut(name, "#"); return name }
	for _, o := range e.Operations {
		if o.Kind == history.OperationReset {
			resets[title(o.Consumer)]++
		}
	}
	check := func(file string, i int, consumer string, epoch int64) {
		undone := len(e.Restores) > 0 // a restored copy of the server may have fewer
		if n := resets[title(consumer)]; err == nil && (epoch < 0 || epoch > n && !undone) {
			err = fmt.Errorf("sim: %s:%d: epoch %d of %s, which was reset %d times", filepath.Join(dir, file), i+1, epoch, consumer, n)
		}
	}
	for i, o := range e.Operations {
		check("operations.jsonl", i, o.Consumer, o.Epoch)
	}
	for i, x := range e.Ledger {
		check("ledger.jsonl", i, x.Consumer, x.Epoch)
	}
	for i, s := range e.Skips {
		check("audit.jsonl", i, s.Consumer, s.Epoch)
	}
	for i, s := range e.Forgotten {
		check("forgotten.jsonl", i, s.Consumer, s.Epoch)
	}
	for i, seen := range e.Sightings {
		for _, s := range seen.Standings {
			check("sightings.jsonl", i, s.Consumer, s.Epoch)
		}
	}
	for i, sample := range e.Samples {
		for _, s := range sample {
			check("samples.jsonl", i, s.Consumer, s.Epoch)
		}
	}
	return err
}
