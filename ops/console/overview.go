package console

import (
	"context"
	"net/url"
	"slices"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/ops"
)

// overviewPage shows the log and its consumers.
type overviewPage struct {
	Now *snapshot `json:"-"`
	choice
	Log      ops.Log
	Fault    string         `json:",omitempty"` // why the log cannot be read
	Doubts   []ops.Gap      `json:",omitempty"`
	Blockers []ops.Blocker  `json:",omitempty"`
	Wrong    []alarms.Alarm `json:",omitempty"`
}

func overviewOf(s *snapshot, q url.Values) (any, error) {
	return overviewPage{s, s.choose("./", q), s.Log, s.Fault, s.Doubts, s.Blockers, s.Wrong}, nil
}

func (r *eventReads) overview(ctx context.Context, q query, _ Grant) (any, error) {
	s, err := r.lookCloser(ctx)
	if err != nil {
		return nil, err
	}
	return overviewOf(s, q.Values)
}

// workersPage shows the workers, and the consumers that each could run.
type workersPage struct {
	Now *snapshot `json:"-"`
	choice
	Workers []ops.Worker
	Stopped []ops.StoppedWorker
	Places  []place `json:"-"`
}

// Gone are the rows of the workers that stopped.
func (p workersPage) Gone() []gone { return goneOf(p.Stopped, p.Now.WorkerName) }

// place says which workers run a consumer, and which could run it.
type place struct{ Name, Runs, Able string }

func (r *eventReads) workers(ctx context.Context, q query, _ Grant) (any, error) {
	s, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	return workersOf(s, q.Values)
}

func workersOf(s *snapshot, q url.Values) (any, error) {
	p := workersPage{Now: s, choice: s.choose("workers", q), Workers: s.Workers, Stopped: s.Stopped}
	runs, able, unable := map[string][]string{}, map[string][]string{}, map[string][]string{}
	shown, can := map[string]bool{}, map[string]bool{}
	for _, c := range p.choice.Consumers {
		shown[c.Name] = true
	}
	for _, w := range s.Workers {
		for _, name := range w.Consumers {
			name = partition.Consumer(name)
			if at := runs[name]; !slices.Contains(at, s.WorkerName(w.ID)) {
				runs[name] = append(at, s.WorkerName(w.ID))
			}
		}
		if s.Silent(w.ID) {
			continue // it can run nothing
		}
		clear(can)
		for _, name := range w.Able {
			if shown[name] {
				can[name] = true
			}
		}
		for _, c := range p.choice.Consumers {
			if can[c.Name] {
				able[c.Name] = append(able[c.Name], placeOf(w))
			} else {
				unable[c.Name] = append(unable[c.Name], placeOf(w))
			}
		}
	}
	for _, c := range p.choice.Consumers {
		at := place{Name: c.Name, Runs: some(runs[c.Name], "nobody"), Able: some(able[c.Name], "nobody")}
		switch can, cannot := len(able[c.Name]), len(unable[c.Name]); {
		case can > 1 && cannot == 0:
			at.Able = "all"
		case cannot > 0 && can > cannot:
			at.Able = "all but " + some(unable[c.Name], "")
		}
		p.Places = append(p.Places, at)
	}
	return p, nil
}
