package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

// keeper keeps runs in directories: all if there is a place for them, otherwise
// the first few that broke.
type keeper struct {
	place    string // empty: here, those that broke
	log      string // of the server, empty: unknown
	from     int64  // in the log, where the run began
	failures int
}

// enoughFailures is how many are kept of themselves.
const enoughFailures = 5

// begin takes down where the server's log stands.
func (k *keeper) begin() {
	k.from = 0
	if info, err := os.Stat(k.log); err == nil {
		k.from = info.Size()
	}
}

// end keeps a run that is worth it, and says where.
func (k *keeper) end(r *oracle.Report, say io.Writer) error {
	name := fmt.Sprintf("sim-%d", r.Seed)
	switch {
	case r.Interrupted:
		return nil
	case r.Outcome == oracle.NotJudged:
		name = fmt.Sprintf("sim-not-judged-%d", r.Seed)
	case !r.Held:
		name = fmt.Sprintf("sim-failure-%d", r.Seed)
		k.failures++
	}
	if k.place == "" && (r.Held || r.Outcome == oracle.NotJudged || k.failures > enoughFailures) {
		return nil
	}
	dir, err := k.save(name, r)
	if err == nil {
		fmt.Fprintf(say, "kept:    %s (its README.txt says more)\n", dir)
	}
	return err
}

// save keeps a run under that name, or one like it. A server that could not be replaced
// has taken its log with it.
func (k *keeper) save(name string, r *oracle.Report) (as string, err error) {
	var logs []bundle.Log
	if k.log != "" {
		log, err := os.Open(k.log)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return bundle.Keep(filepath.Join(k.place, name), r)
		case err != nil:
			return "", fmt.Errorf("sim: the server's log: %w", err)
		}
		defer func() { _ = log.Close() }() // only read
		if _, err := log.Seek(k.from, io.SeekStart); err != nil {
			return "", fmt.Errorf("sim: the server's log: %w", err)
		}
		logs = append(logs, bundle.Log{Name: "server.log", Text: log})
	}
	return bundle.Keep(filepath.Join(k.place, name), r, logs...)
}
