package sim

import (
	"math"
	"time"

	"github.com/pgfrontier/worker"
)

// observer writes down what a worker says of itself.
func observer(h *History, who string) worker.Observer {
	consumer := func(kind Kind) func(worker.ConsumerInfo) {
		return func(i worker.ConsumerInfo) { h.Add(who, i.Consumer, kind, nil) }
	}
	life := func(kind Kind) func(worker.WorkerInfo) {
		return func(i worker.WorkerInfo) { h.Add(who, "", kind, Life{i.ID.String(), textOf(i.Err)}) }
	}
	return worker.Observer{
		WorkerStarted:   life(WorkerBegan),
		WorkerStopped:   life(WorkerEnded),
		ConsumerStarted: consumer(Owns),
		ConsumerStopped: consumer(OwnsNoMore),
		ConsumerPaused: func(i worker.ConsumerInfo) {
			h.Add(who, i.Consumer, ConsumerPaused, Life{Error: i.Reason})
		},
		LeadershipChanged: func(l worker.Leadership) {
			h.Add(who, "", map[bool]Kind{true: Leads, false: LeadsNoMore}[l.Leader], nil)
		},
		BatchDone: func(b worker.Batch) { h.Add(who, b.Consumer, BatchEnded, batchOf(b)) },
		Retrying: func(r worker.Retry) {
			h.Add(who, r.Consumer, RetryAnnounced, Retry{r.InARow, ms(r.Pause), r.ByHandler, textOf(r.Err)})
		},
		Skipped: func(s worker.Skip) {
			h.Add(who, s.Consumer, GapSkipped, Gap{Span{s.First, s.Last}, s.Missing, string(s.State)})
		},
		FrontierBlocked: func(b worker.BlockingTransaction) {
			h.Add(who, "", FrontierBlocked, Blocker{b.VirtualTransaction, b.ApplicationName, b.State, b.PID == 0})
		},
	}
}

func batchOf(b worker.Batch) Batch {
	outcome := BatchCommitted
	switch {
	case b.Overtaken:
		outcome = BatchOvertaken
	case b.Err != nil:
		outcome = BatchFailed
	}
	return Batch{
		Outcome: outcome, Attempt: b.Attempt, Events: b.Events, Late: b.Late,
		From: b.From, To: b.To, First: b.First, Last: b.Last,
		ReadMS: ms(b.Read), GuardMS: ms(b.Guard), HandleMS: ms(b.Handle), CommitMS: ms(b.Commit),
		Error: textOf(b.Err),
	}
}

func header(c Config, s Scenario) Header {
	h := Header{Seed: c.Seed, Repeat: c.command(), Workers: c.Workers, Writers: c.Writers}
	for _, scope := range s.Scope {
		h.Consumers = append(h.Consumers, scope.Name)
	}
	return h
}

func sampleOf(standings []Standing, head int64) Sample {
	s := Sample{Head: head, Lag: lag(standings, head), Checkpoints: map[string]int64{}}
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
