package sim

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/sim/history"
)

// runJobs runs a worker of jobs in a process of its own.
func (r Role) runJobs(ctx context.Context, config *pgx.ConnConfig, tell func(history.Record)) error {
	notes := &distantNotes{who: r.Name, began: r.Began, history: history.Tell(r.Began, tell)}
	m := &machine{name: r.Name, history: notes.history, db: openPool(config, r.Scenario.Jobs.Pool)}
	defer m.db.Close()
	n := newJobNode(r.Scenario, m, r.Version, notes, r.URL)
	notes.history.Add(r.Name, "", history.WorkerAdded, history.Runner{Name: r.Name, ID: n.id(), Version: r.Version})
	return n.start(ctx)
}

// distantNotes are the notes of a worker that is in a process of its own. Each is told
// before the handler goes on, so a process that is killed has told what it did. What
// the observer says is in the history, which tells it, too.
type distantNotes struct {
	who     string
	began   time.Time // the run's
	history *history.History

	mu   sync.Mutex
	runs []history.JobRun
}

func (d *distantNotes) begin(r history.JobRun) (number int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Began = d.now()
	d.runs = append(d.runs, r)
	number = len(d.runs) - 1
	d.say(number)
	return number
}

func (d *distantNotes) end(number int, outcome string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs[number].Ended, d.runs[number].Outcome = d.now(), outcome
	d.say(number)
}

func (d *distantNotes) say(number int) {
	d.history.Add(d.who, "", history.HandlerCalled, history.HandlerRun{N: number, JobRun: d.runs[number]})
}

func (*distantNotes) tell(history.Told) {}

// now is the time in the books, by the clock of this process.
func (d *distantNotes) now() float64 { return time.Since(d.began).Seconds() }
