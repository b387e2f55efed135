package jobs

import (
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/history"
)

// observer records what the worker reports of itself.
func (n *node) observer() observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.WorkerStarted:
			n.History.Add(n.Name, "", history.WorkerBegan, history.Life{ID: e.ID.String()})
		case observe.WorkerStopped:
			n.History.Add(n.Name, "", history.WorkerEnded, history.Life{ID: e.ID.String(), Error: history.TextOf(e.Err)})
		case observe.LeadershipChanged:
			n.History.Add(n.Name, "", map[bool]history.Kind{true: history.Leads, false: history.LeadsNoMore}[e.Leader], nil)
		case observe.JobDone:
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: e.ID, Attempt: e.Attempt, State: e.State})
			n.History.Add(n.Name, e.Queue, history.JobEnded, history.JobDone{ID: e.ID, Kind: e.Kind, Attempt: e.Attempt, State: e.State, TookMS: history.MS(e.Took), Error: history.TextOf(e.Err)})
		case observe.JobLost:
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: e.ID, Attempt: e.Attempt, Lost: true})
			n.History.Add(n.Name, e.Queue, history.JobEnded, history.JobDone{ID: e.ID, Kind: e.Kind, Attempt: e.Attempt, State: lost})
		}
	}
}
