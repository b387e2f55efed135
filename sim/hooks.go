package sim

import (
	"math"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/sim/history"
)

// observer writes down what a worker says of itself.
func observer(h *history.History, who string) worker.Observer {
	consumer := func(kind history.Kind) func(worker.ConsumerInfo) {
		return func(i worker.ConsumerInfo) { h.Add(who, i.Consumer, kind, nil) }
	}
	life := func(kind history.Kind) func(worker.WorkerInfo) {
		return func(i worker.WorkerInfo) { h.Add(who, "", kind, history.Life{ID: i.ID.String(), Error: textOf(i.Err)}) }
	}
	return worker.Observer{
		WorkerStarted:   life(history.WorkerBegan),
		WorkerStopped:   life(history.WorkerEnded),
		ConsumerStarted: consumer(history.Owns),
		ConsumerStopped: consumer(history.OwnsNoMore),
		ConsumerPaused: func(i worker.ConsumerInfo) {
			h.Add(who, i.Consumer, history.ConsumerPaused, history.Life{Error: i.Reason})
		},
		LeadershipChanged: func(l worker.Leadership) {
			h.Add(who, "", map[bool]history.Kind{true: history.Leads, false: history.LeadsNoMore}[l.Leader], nil)
		},
		BatchDone: func(b worker.Batch) { h.Add(who, b.Consumer, history.BatchEnded, batchOf(b)) },
		Retrying: func(r worker.Retry) {
			h.Add(who, r.Consumer, history.RetryAnnounced, history.Retry{InARow: r.InARow, PauseMS: ms(r.Pause), ByHandler: r.ByHandler, Error: textOf(r.Err)})
		},
		Skipped: func(s worker.Skip) {
			h.Add(who, s.Consumer, history.GapSkipped, history.Gap{Span: history.Span(s.Range), Missing: s.Missing, State: string(s.State)})
		},
		Rescaled: func(r worker.Rescaled) {
			h.Add(who, r.Consumer, history.UnitsReplaced, history.Rescaled{From: r.From, To: r.To, Position: r.Position})
		},
		FrontierBlocked: func(b worker.BlockingTransaction) {
			h.Add(who, "", history.FrontierBlocked, history.Blocker{Holder: b.VirtualTransaction, Application: b.ApplicationName, State: b.State, Prepared: b.PID == 0})
		},
	}
}

func batchOf(b worker.Batch) history.Batch {
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
		ReadMS: ms(b.Read), GuardMS: ms(b.Guard), HandleMS: ms(b.Handle), CommitMS: ms(b.Commit),
		Error: textOf(b.Err),
	}
}

func header(c Config, s Scenario) history.Header {
	h := history.Header{Seed: c.Seed, Repeat: c.command(), Workers: c.Workers, Writers: c.Writers}
	for _, scope := range s.Scope {
		h.Consumers = append(h.Consumers, scope.Name)
	}
	return h
}

func sampleOf(standings []history.Standing, head int64) history.Sample {
	s := history.Sample{Head: head, Lag: lag(standings, head), Checkpoints: map[string]int64{}}
	for _, c := range standings {
		s.Checkpoints[c.Consumer] = c.Checkpoint
	}
	return s
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
