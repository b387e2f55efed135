package oracle

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/history"
)

func at(seconds float64) *float64 { return &seconds }

// jobsEvidence is a run in which all is well: job 1 is a transaction that failed
// once, job 2 was lost with its worker and completed by another, job 3 was cancelled
// before it ran, and had been enqueued for an event, job 4 was rolled back.
func jobsEvidence() *history.Evidence {
	cap, h := int64(3), history.New(time.Now())
	j := &history.Jobs{
		Emitted:     history.Emitted{Workers: 1},
		MaxAttempts: 6, RescueBound: 8, DeadAfter: 3, Waited: 1,
		Workers: []history.Runner{{Name: "worker 1.1", ID: "a", Faulted: true, GoneAt: 3}, {Name: "worker 2.1", ID: "b"}},
		Enqueued: []history.Enqueued{
			{Token: "t1", ID: 1, Kind: "tx", Outcome: history.EnqueueCommitted, At: 1, Once: "k"}, {Token: "t1", ID: 1, Existing: true, Outcome: history.EnqueueCommitted, At: 1, Once: "k"},
			{Token: "t2", ID: 2, Kind: "plain", Outcome: history.EnqueueCommitted, At: 1, Key: "u"},
			{Token: "t3", Kind: "batch", Outcome: history.EnqueueCommitted, At: 1, Asked: true},
			{Token: "t4", ID: 4, Kind: "plain", Outcome: history.EnqueueRolledBack, At: 1},
			{Token: "t5", Kind: "tx", Outcome: history.EnqueueRolledBack, At: 1, Asked: true},
		},
		Cancels: []history.Cancel{{ID: 3, Was: "available", At: 2}},
		Runs: []history.JobRun{
			{Token: "t1", ID: 1, Attempt: 1, Worker: "b", Began: 2, Ended: 2.1, Outcome: history.RunFailed}, {Token: "t1", ID: 1, Attempt: 2, Worker: "b", Began: 3, Ended: 3.1, Outcome: history.RunOK},
			{Token: "t2", ID: 2, Attempt: 1, Worker: "a", Began: 2}, {Token: "t2", ID: 2, Attempt: 2, Worker: "b", Began: 6, Ended: 6.1, Outcome: history.RunOK},
		},
		Told:    []history.Told{{Worker: "b", ID: 1, Attempt: 1, State: "available"}, {Worker: "b", ID: 1, Attempt: 2, State: "completed"}, {Worker: "b", ID: 2, Attempt: 2, State: "completed"}},
		Effects: []history.Effect{{Token: "t1", ID: 1, Attempt: 2, Worker: "b"}},
		Finished: []history.Finished{
			{ID: 1, Token: "t1", Kind: "tx", State: "completed", Attempt: 2, Failures: 1, MaxResets: 5, Worker: "b", Claim: 12, StartedAt: at(3), FinishedAt: 3.1, Result: `"t1"`},
			{ID: 2, Token: "t2", Kind: "plain", State: "completed", Attempt: 2, Resets: 1, MaxResets: 5, Worker: "b", Claim: 22, StartedAt: at(6), GoodUntil: at(9), FinishedAt: 6.1, Result: `"t2"`},
			{ID: 3, Token: "t3", Kind: "batch", State: "cancelled", MaxResets: 5, CancelAsked: true, FinishedAt: 2},
		},
		Attempts: []history.JobAttempt{{ID: 1, Attempt: 1, Worker: "b", Claim: 11, StartedAt: at(2), Outcome: "error"}, {ID: 2, Attempt: 1, Worker: "a", Claim: 21, StartedAt: at(2), Outcome: "lost", Code: "WORKER_LOST"}},
		Steps: []history.JobStep{
			{At: 1, ID: 1, State: "available", RunAt: 1}, {At: 1, ID: 2, State: "available", RunAt: 1, Key: "u"}, {At: 1, ID: 3, State: "available", RunAt: 1},
			{At: 2, ID: 1, Was: "available", State: "running", Attempt: 1, Claim: 11, RunAt: 1}, {At: 2, ID: 2, Was: "available", State: "running", Attempt: 1, Claim: 21, RunAt: 1, Key: "u"}, {At: 2, ID: 3, Was: "available", RunAt: 1},
			{At: 2.1, ID: 1, Was: "running", State: "available", Attempt: 1, RunAt: 1}, {At: 3, ID: 1, Was: "available", State: "running", Attempt: 2, Claim: 12, RunAt: 1}, {At: 3.1, ID: 1, Was: "running", Attempt: 2, Claim: 12, RunAt: 1},
			{At: 5, ID: 2, Was: "running", State: "available", Attempt: 1, RunAt: 6, Key: "u"}, {At: 6, ID: 2, Was: "available", State: "running", Attempt: 2, Claim: 22, RunAt: 6, Key: "u"}, {At: 6.1, ID: 2, Was: "running", Attempt: 2, Claim: 22, RunAt: 6, Key: "u"},
		},
		Claims: []history.CappedRun{{At: 2, Cap: &cap, Running: 3}},
		Resets: []history.JobReset{{At: 5, ID: 2, Attempt: 1, Worker: "a", Started: true}},
		Rest:   history.JobsRest{Took: 1, Bound: 20},
	}
	withSchedules(j)
	withFlows(j)
	return &history.Evidence{History: h, Jobs: j, Exits: []history.Exit{{Worker: "worker 2.1", Asked: history.ExitStopped, InTime: true}}}
}

func TestJobsFlawless(t *testing.T) {
	for _, f := range Judge(jobsEvidence()) {
		if !f.Holds() {
			t.Errorf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
		}
	}
}

// A crash may leave unsure whether a key of Once was used, and who meets the key is sure.
func TestJobsUnsureKeyOfOnce(t *testing.T) {
	e := jobsEvidence()
	e.Jobs.Enqueued[0].Outcome, e.Jobs.Forgetful = history.EnqueueUnsure, true
	for _, f := range Judge(e) {
		if !f.Holds() {
			t.Errorf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
		}
	}
}

// Each flaw breaks the invariant that is there for it, whatever else it breaks.
func TestJobsFlaws(t *testing.T) {
	for name, c := range map[string]struct {
		flaw   func(j *history.Jobs)
		breaks string
	}{
		"a job is gone": {func(j *history.Jobs) { j.Finished = j.Finished[1:] }, "no job lost"},
		"a job is due": {func(j *history.Jobs) {
			j.Left = []history.Unfinished{{ID: 3, Token: "t3", State: "available", DueIn: -9}}
		}, "no job lost"},
		"rolled back, and there":  {func(j *history.Jobs) { j.Finished[2].Token = "t4" }, "nothing else"},
		"rolled back, and ran":    {func(j *history.Jobs) { j.Runs[0].Token = "t4" }, "nothing else"},
		"finished and unfinished": {func(j *history.Jobs) { j.Left = []history.Unfinished{{ID: 1, Token: "t1", DueIn: 9}} }, "ended once"},
		"asked for, and there twice": {func(j *history.Jobs) {
			j.Finished = append(j.Finished, history.Finished{ID: 9, Token: "t3", State: "cancelled"})
		}, "asked once"},
		"asked for, and not there":         {func(j *history.Jobs) { j.Finished = j.Finished[:2] }, "asked once"},
		"asked for by no event, and there": {func(j *history.Jobs) { j.Finished[2].Token = "t5" }, "asked once"},
		"events that were not handled":     {func(j *history.Jobs) { j.Rest.Behind = 1 }, "comes to rest"},
		"two effects":                      {func(j *history.Jobs) { j.Effects = append(j.Effects, j.Effects[0]) }, "effects once"},
		"no effect":                        {func(j *history.Jobs) { j.Effects = nil }, "effects once"},
		"the effect of another run":        {func(j *history.Jobs) { j.Effects[0].Worker = "a" }, "effects once"},
		"completed, and never ended":       {func(j *history.Jobs) { j.Runs[3].Outcome = "" }, "done is done"},
		"completed, and had failed":        {func(j *history.Jobs) { j.Runs[3].Outcome = history.RunFailed }, "done is done"},
		"completed before it ended":        {func(j *history.Jobs) { j.Runs[3].Ended = 7 }, "done is done"},
		"another result":                   {func(j *history.Jobs) { j.Finished[1].Result = "1" }, "done is done"},
		"failed without a reason":          {func(j *history.Jobs) { j.Finished[1].State = "failed" }, "done is done"},
		"cancelled without a wish":         {func(j *history.Jobs) { j.Cancels = nil }, "done is done"},
		"ended by the claim before":        {func(j *history.Jobs) { j.Finished[0].Claim = 11 }, "last claim"},
		"ended while it did not run":       {func(j *history.Jobs) { j.Steps[8].Was = "available" }, "last claim"},
		"a failure too many":               {func(j *history.Jobs) { j.Finished[0].Failures++ }, "adds up"},
		"blamed without a start":           {func(j *history.Jobs) { j.Attempts[1].StartedAt = nil }, "adds up"},
		"an attempt without a trace":       {func(j *history.Jobs) { j.Attempts = j.Attempts[1:] }, "adds up"},
		"started too late":                 {func(j *history.Jobs) { j.Finished[1].StartedAt = at(10) }, "in time"},
		"over the cap":                     {func(j *history.Jobs) { j.Claims[0].Running = 4 }, "caps"},
		"claimed while paused":             {func(j *history.Jobs) { j.Claims[0].Paused = true }, "caps"},
		"a key held twice":                 {func(j *history.Jobs) { j.Steps[2].Key = "u" }, "keys"},
		"two jobs of a key of Once":        {func(j *history.Jobs) { j.Enqueued[1].ID = 2 }, "keys"},
		"cancelled, and completed":         {func(j *history.Jobs) { j.Finished[2].State = "completed" }, "cancelled"},
		"cancelled in a run, ran again":    {func(j *history.Jobs) { j.Cancels = append(j.Cancels, history.Cancel{ID: 1, Was: "running", At: 2}) }, "cancelled"},
		"taken from a live worker":         {func(j *history.Jobs) { j.Resets[0].Alive = true }, "none taken"},
		"taken from one never disturbed":   {func(j *history.Jobs) { j.Resets[0].Worker = "b" }, "none taken"},
		"rescued too late":                 {func(j *history.Jobs) { j.Resets[0].At = 30 }, "rescued"},
		"told twice":                       {func(j *history.Jobs) { j.Told = append(j.Told, j.Told[0]) }, "as told"},
		"told lost, and was not":           {func(j *history.Jobs) { j.Told[2].Lost = true }, "as told"},
		"told completed, and was not":      {func(j *history.Jobs) { j.Told[1].Attempt = 9 }, "as told"},
		"told to run again, and had ended": {func(j *history.Jobs) { j.Told[1].State = "available" }, "as told"},
		"told failed, and had completed":   {func(j *history.Jobs) { j.Told[1].State = "failed" }, "as told"},
		"failed below its own bound":       {func(j *history.Jobs) { j.Finished[0].State, j.Finished[0].MaxAttempts = "failed", 2 }, "done is done"},
		"still running":                    {func(j *history.Jobs) { j.Rest.Running = 1 }, "comes to rest"},
		"overtaken again and again":        {overtake, "in turn"},
		"a client that returned nonsense":  {func(j *history.Jobs) { j.Misled = []string{"nonsense"} }, "nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			e := jobsEvidence()
			c.flaw(e.Jobs)
			if !slices.ContainsFunc(Judge(e), func(f Finding) bool { return f.Name == c.breaks && f.Broken > 0 }) {
				t.Errorf("%q holds", c.breaks)
			}
		})
	}
}

// A job waits for as long as the server is away, and the time counts from its end.
func TestJobsWaitForTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		outage history.Outage
		broken int64
	}{
		"back just now": {history.Outage{From: 4, To: 25}, 0},
		"still away":    {history.Outage{From: 4, To: 40}, 0},
		"back for long": {history.Outage{From: 4, To: 10}, 1},
		"away later":    {history.Outage{From: 31, To: 40}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobsEvidence().Jobs
			j.Resets[0].At = 30
			j.Outages = []history.Outage{c.outage}
			if f := newJobLedgers(j).rescued(); int64(f.Broken) != c.broken {
				t.Errorf("broken %d times, want %d: %v", f.Broken, c.broken, f.Examples)
			}
		})
	}
}

// A machine that does not keep up excuses a late heartbeat, for a while.
func TestJobsTakenOnASlowMachine(t *testing.T) {
	for name, c := range map[string]struct {
		slow   history.Outage
		broken int
	}{
		"meanwhile":   {history.Outage{From: 27, To: 31}, 0},
		"just before": {history.Outage{From: 25, To: 29}, 0},
		"long ago":    {history.Outage{From: 1, To: 9}, 1},
		"afterwards":  {history.Outage{From: 31, To: 40}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobsEvidence().Jobs
			j.Resets[0].Worker, j.Resets[0].At = "b", 30
			j.Slow, j.Outages = []history.Outage{c.slow}, []history.Outage{{From: 0, To: 40}}
			if f := newJobLedgers(j).noneTaken(); int(f.Broken) != c.broken {
				t.Errorf("broken %d times, want %d: %v", f.Broken, c.broken, f.Examples)
			}
		})
	}
}

// overtake lets later jobs be claimed for ten seconds before the first one.
func overtake(j *history.Jobs) {
	j.Enqueued = append(j.Enqueued, history.Enqueued{Token: "t5", ID: 5, Outcome: history.EnqueueCommitted})
	j.Steps = append(j.Steps, history.JobStep{At: 10, ID: 5, State: "available", RunAt: 10})
	for n := range int64(10) {
		j.Steps = append(j.Steps, history.JobStep{At: 11 + float64(n), ID: 6 + n, Was: "available", State: "running", RunAt: 10.5, Attempt: 1})
	}
}

// A claim takes many jobs, and its statement changes them in any order.
func TestJobsOfOneClaimAreInTurn(t *testing.T) {
	j := jobsEvidence().Jobs
	overtake(j)
	for i := range j.Steps {
		if s := &j.Steps[i]; s.At > 12 {
			s.Claim = 99
		}
	}
	j.Steps = append(j.Steps, history.JobStep{At: 21, ID: 5, Was: "available", State: "running", Attempt: 1, Claim: 99, RunAt: 10})
	if f := newJobLedgers(j).inTurn(); f.Broken > 0 {
		t.Error(f.Examples)
	}
}

func TestJobsReachStates(t *testing.T) {
	e := jobsEvidence()
	counts := map[string]int64{}
	for _, s := range Reached(e) {
		counts[s.Name] = s.Count
	}
	for name, want := range map[string]int64{jobsCompleted: 9, jobsCancelled: 1, runsRetried: 1, runsLost: 1, onceTaken: 1, capReached: 1, resultsAwaited: 1, jobsAsked: 1, prefetchedLost: 0} {
		if counts[name] != want {
			t.Errorf("%s: reached %d times, want %d", name, counts[name], want)
		}
	}
}

// withSchedules adds a schedule each ten microseconds, two of which are caught up. A
// worker places it, enqueues a tick, and then two of three that it has missed; a pause
// takes another, and a worker of the next version has it each four.
func withSchedules(j *history.Jobs) {
	j.Workers[1].Version = 1
	a, b := "sim worker 1.1", "sim worker 2.1"
	j.Schedules = []history.Schedule{{Name: "s", CatchUp: 2, Periods: []int64{10, 4}}}
	j.Changes = []history.ScheduleChange{
		{At: 101, Tx: "1", Who: a, Schedule: "s", Hash: "h"}, {At: 102, Tx: "1", Who: a, Schedule: "s", WasHash: "h", Hash: "h", Next: 110},
		{At: 111, Tx: "2", Who: a, Schedule: "s", WasHash: "h", Hash: "h", Was: 110, Next: 120},
		{At: 145, Tx: "3", Who: a, Schedule: "s", WasHash: "h", Hash: "h", Was: 120, Next: 150},
		{At: 146, Tx: "4", Who: "sim harness", Schedule: "s", WasHash: "h", Hash: "h", Was: 150, Next: 150, Paused: true},
		{At: 151, Tx: "5", Who: a, Schedule: "s", WasHash: "h", Hash: "h", Was: 150, Next: 160, WasPaused: true, Paused: true},
		{At: 162, Tx: "6", Who: "sim harness", Schedule: "s", WasHash: "h", Hash: "h", Was: 160, Next: 160, WasPaused: true, Resumed: 161},
		{At: 171, Tx: "7", Who: a, Schedule: "s", WasHash: "h", Hash: "h", Was: 160, Next: 180, Resumed: 161},
		{At: 173, Tx: "8", Who: b, Schedule: "s", WasHash: "h", Hash: "i", Was: 180, Next: 180}, {At: 174, Tx: "8", Who: b, Schedule: "s", WasHash: "i", Hash: "i", Was: 180, Next: 176},
		{At: 177, Tx: "9", Who: b, Schedule: "s", WasHash: "i", Hash: "i", Was: 176, Next: 180},
	}
	for i, t := range []history.Tick{{Tx: "2", At: 112, Tick: 110}, {Tx: "3", At: 145, Tick: 130}, {Tx: "3", At: 145, Tick: 140}, {Tx: "7", At: 172, Tick: 170}, {Tx: "9", At: 178, Tick: 176}} {
		t.Schedule, t.ID, t.Token = "s", int64(10+i), fmt.Sprintf("tick s %d", t.Tick)
		j.Ticks = append(j.Ticks, t)
	}
}

// All is well but for what one flaw breaks.
func TestScheduleFlaws(t *testing.T) {
	const once, paused, times = "each tick once", "pauses", "last times"
	for name, c := range map[string]struct {
		flaw   func(j *history.Jobs)
		breaks string
	}{
		"all is well":          {func(*history.Jobs) {}, ""},
		"a tick without a job": {func(j *history.Jobs) { j.Ticks = j.Ticks[1:] }, once},
		"a tick twice":         {func(j *history.Jobs) { j.Ticks = append(j.Ticks, j.Ticks[0]) }, once},
		"a tick twice, apart": {func(j *history.Jobs) {
			j.Changes = append(j.Changes, history.ScheduleChange{At: 178, Tx: "10", Who: "sim worker 2.1", Schedule: "s", WasHash: "i", Hash: "i", Was: 176, Next: 180})
			j.Ticks = append(j.Ticks, j.Ticks[4])
			j.Ticks[5].Tx = "10"
		}, once},
		"a job without a tick":    {func(j *history.Jobs) { j.Ticks[0].Tx = "elsewhere" }, once},
		"another tick":            {func(j *history.Jobs) { j.Ticks[0].Tick++ }, once},
		"before its time":         {func(j *history.Jobs) { j.Ticks[0].At = 109 }, once},
		"made of another tick":    {func(j *history.Jobs) { j.Ticks[0].Token = "tick s 120" }, once},
		"too much caught up":      {func(j *history.Jobs) { j.Schedules[0].CatchUp = 1 }, once},
		"too little caught up":    {func(j *history.Jobs) { j.Schedules[0].CatchUp = 3 }, once},
		"a tick in a pause":       {func(j *history.Jobs) { j.Ticks[3].At = 155 }, paused},
		"a tick of a pause after": {func(j *history.Jobs) { j.Ticks[3].Tick = 160 }, paused},
		"moved by the old":        {func(j *history.Jobs) { j.Changes[10].Who = "sim worker 1.1" }, times},
		"begins too early":        {func(j *history.Jobs) { j.Changes[9].Next = 168 }, times},
		"moved ahead":             {func(j *history.Jobs) { j.Changes[10].Next = 184 }, times},
		"moved to no tick":        {func(j *history.Jobs) { j.Changes[2].Next = 121 }, times},
		"overdue":                 {func(j *history.Jobs) { j.Rest.Overdue = 1 }, "comes to rest"},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobsEvidence().Jobs
			c.flaw(j)
			b := newJobLedgers(j)
			for _, f := range []Finding{b.ticksOnce(), b.pauses(), b.times(), b.rest()} {
				if f.Checks == 0 || f.Name == c.breaks && f.Holds() || c.breaks == "" && !f.Holds() {
					t.Errorf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
				}
			}
		})
	}
}

func TestSchedulesReachStates(t *testing.T) {
	counts := map[string]int64{}
	newJobLedgers(jobsEvidence().Jobs).countSchedules(counts)
	want := map[string]int64{ticksEnqueued: 5, ticksByAnother: 1, ticksCaughtUp: 1, ticksMissed: 1, ticksPaused: 2, timesReplaced: 1, schedulesRemade: 0, ticksFought: 0}
	if !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
}
