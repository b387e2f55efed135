package events

import (
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/history"
)

// observer records what a worker reports of itself.
func observer(h *history.History, who string) observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.WorkerStarted:
			h.Add(who, "", history.WorkerBegan, history.Life{ID: e.ID.String()})
		case observe.WorkerStopped:
			h.Add(who, "", history.WorkerEnded, history.Life{ID: e.ID.String(), Error: history.TextOf(e.Err)})
		case observe.ConsumerStarted:
			h.Add(who, e.Consumer, history.Owns, nil)
		case observe.ConsumerStopped:
			h.Add(who, e.Consumer, history.OwnsNoMore, nil)
		case observe.ConsumerPaused:
			h.Add(who, e.Consumer, history.ConsumerPaused, history.Life{Error: e.Reason})
		case observe.LeadershipChanged:
			h.Add(who, "", map[bool]history.Kind{true: history.Leads, false: history.LeadsNoMore}[e.Leader], nil)
		case observe.BatchDone:
			h.Add(who, e.Consumer, history.BatchEnded, batchOf(e.Batch))
		case observe.Retrying:
			h.Add(who, e.Consumer, history.RetryAnnounced, history.Retry{InARow: e.InARow, PauseMS: history.MS(e.Pause), ByHandler: e.ByHandler, Error: history.TextOf(e.Err)})
		case observe.Skipped:
			h.Add(who, e.Consumer, history.GapSkipped, history.Gap{Span: history.Span(e.Range), Missing: e.Missing, State: string(e.State)})
		case observe.Rescaled:
			h.Add(who, e.Consumer, history.UnitsReplaced, history.Rescaled{From: e.From, To: e.To, Position: e.Position})
		case observe.FrontierBlocked:
			h.Add(who, "", history.FrontierBlocked, history.Blocker{Holder: e.VirtualTransaction, Application: e.ApplicationName, State: e.State, Prepared: e.PID == 0})
		}
	}
}

func batchOf(b observe.Batch) history.Batch {
	outcome := history.BatchCommitted
	switch {
	case b.Overtaken:
		outcome = history.BatchOvertaken
	case b.Err != nil:
		outcome = history.BatchFailed
	}
	return history.Batch{
		Outcome: outcome, Attempt: b.Attempt, Events: b.Events, Late: b.Late,
		From: b.From, To: b.To, First: b.First, Last: b.Last,
		ReadMS: history.MS(b.Read), GuardMS: history.MS(b.Guard), HandleMS: history.MS(b.Handle), CommitMS: history.MS(b.Commit),
		Error: history.TextOf(b.Err),
	}
}
