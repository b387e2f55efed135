package jobs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// newNode returns a node of a version on a machine, whose worker may listen by a
// connection string.
func newNode(s Scenario, m *stage.Machine, version int64, notes notes, listen string) *node {
	n := &node{Machine: m, knobs: s.Knobs, version: version, notes: notes, dice: fault.Dice(s.Seed, "handlers "+m.Name)}
	if !fault.Chance(n.dice, n.knobs.Listeners) {
		listen = ""
	}
	n.worker = jobs.NewWorker(n.DB, n.handlers(), append(n.knobs.options(listen), flow.Advance(), jobs.WithLogger(slog.New(slog.DiscardHandler)), jobs.WithObserver(n.observer()))...)
	return n
}

// startNode starts the life-th worker of a slot.
func (s *shared) startNode(ctx context.Context, slot, life int) (*node, error) {
	scenario := s.builds.Of(s.scenario, s.scenario.Seed, slot, life, &s.Tally)
	m, err := stage.NewMachine(scenario.equipment(), s.on.Instance.Database, s.History, slot, life)
	if err != nil {
		return nil, err
	}
	n := newNode(scenario, m, s.version.Load(), s.ledger, m.Listening())
	s.ledger.add(history.Runner{Name: n.Name, ID: n.id(), Version: n.version})
	if server.Ending(s.on.Life()) {
		s.ledger.fault(n.Name)
	}
	if s.scenario.Faults[stage.AsyncWorkersOn] > 0 {
		s.Tally.Add(stage.AsyncWorkers, 1)
	}
	n.Launch(ctx, n.start)
	return n, nil
}

// RunWorker runs a worker of jobs in this process, over connections of config, until ctx
// ends or it fails.
func RunWorker(ctx context.Context, r stage.Role, s Scenario, config *pgx.ConnConfig, tell func(history.Record)) error {
	notes := &distantNotes{who: r.Name, began: r.Began, history: history.Tell(r.Began, tell)}
	m := stage.OwnProcess(r.Name, notes.history, config, s.Knobs.Pool)
	defer m.DB.Close()
	n := newNode(s, m, r.Version, notes, r.URL)
	notes.history.Add(r.Name, "", history.WorkerAdded, history.Runner{Name: r.Name, ID: n.id(), Version: r.Version})
	return n.start(ctx)
}

// distantNotes are the notes of a worker in a process of its own. Each note is sent before the
// handler goes on, so a process that is killed has reported what it did. What the observer reports
// is in the history, which is sent, too.
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

// now is the time in the ledgers, by the clock of this process.
func (d *distantNotes) now() float64 { return time.Since(d.began).Seconds() }
