package oracle

import "github.com/pgfrontier/worker/sim/history"

// The states of a run of jobs, in the order in which they are printed.
const (
	jobsCompleted    = "jobs completed"
	jobsFailedOften  = "jobs that failed at their last attempt"
	jobsFailedAtOnce = "jobs that their handler failed for good"
	jobsLostForGood  = "jobs that failed, as too many workers were lost with them"
	jobsDiscarded    = "jobs that their handler discarded"
	jobsCancelled    = "jobs cancelled before they ran"
	cancelledAtStart = "jobs cancelled when they were claimed and not started"
	jobsCancelledIn  = "jobs cancelled while they ran"
	expiredUnclaimed = "jobs expired before they were claimed"
	expiredAtStart   = "jobs expired when they were claimed and not started"
	expiredBetween   = "jobs expired between two runs"
	runsRetried      = "runs that failed and were tried again"
	runsDelayed      = "of these, when their handler said"
	runsPanicked     = "of these, after a panic"
	runsTimedOut     = "of these, after their time was over"
	runsUndone       = "of these, whose handler had not committed its completion"
	runsCutOff       = "runs whose transaction was lost with its connection"
	runsSnoozed      = "runs that snoozed"
	batchesHalved    = "runs in a part of their batch, after an error of another"
	runsReleased     = "runs given back, uncounted"
	prefetchedBack   = "of these, claimed and not started"
	runsLost         = "started runs reset after the loss of their worker"
	prefetchedLost   = "claimed runs reset that had not started"
	zombiesRefused   = "runs whose end was refused: their job was another's"
	zombieCommits    = "of these, at the COMMIT of their transaction"
	claimsUnsent     = "claims cut off before they were sent"
	claimsUnheard    = "claims that happened, their answer lost"
	runsAdopted      = "runs adopted by their worker after such a claim"
	endsUnsent       = "ends of runs cut off before they were sent"
	endsRepeated     = "ends of runs that happened, their answer lost"
	commitsUnsent    = "COMMITs of workers cut off before they were sent"
	commitsDoubted   = "COMMITs of workers that happened, their answer lost"
	committedLate    = "jobs committed after later ones had been claimed"
	keysTaken        = "jobs left out because another had their key"
	onceTaken        = "jobs left out because their key of Once was used"
	keysFreed        = "keys free again when their job started"
	capReached       = "claims that filled the cap of a queue"
	capOfAllReached  = "claims that filled the cap of all queues"
	resultsAwaited   = "results that Wait returned"
	jobsAsked        = "jobs that consumers enqueued for events"
	eventsLate       = "events that a consumer enqueued for late"
	eventsAgain      = "events that a consumer handled again, after it was set back"
	eventsByCopy     = "events that a consumer's copy handled in its name"
	notesRemoved     = "settled events whose notes were removed"
	jobsLeaders      = "leaders of job workers"
	ticksEnqueued    = "ticks of schedules that became jobs"
	ticksByAnother   = "of these, of another worker than the one before"
	ticksCaughtUp    = "ticks that became jobs late, before a later one"
	ticksMissed      = "ticks that were missed, beyond those caught up"
	ticksPaused      = "ticks that passed while their schedule was paused"
	ticksFought      = "times that a worker came second to a tick"
	ticksUnsent      = "moves of schedules cut off before they were sent"
	ticksUncommitted = "moves of schedules cut off before their COMMIT"
	timesReplaced    = "schedules given other times by a worker that started"
	schedulesRemade  = "schedules made again after they were removed"
	flowsCompleted   = "runs of flows that completed"
	flowsFailed      = "runs of flows that failed"
	flowsCancelled   = "runs of flows that were cancelled"
	flowsRetried     = "runs of flows that were retried"
	flowJoins        = "steps that several others had to end for"
	joinsAtOnce      = "of these, by the end of several at once"
	stepsSkipped     = "steps skipped for what they depend on"
	stepsUnneeded    = "steps that their handler skipped"
	listsSpread      = "lists whose elements became jobs"
	listsOfNone      = "lists of none"
	endsSwept        = "ends of steps that another worker told"
	tellsUnsent      = "ends of steps whose worker was cut off before it told them"
	tellsRepeated    = "ends of steps that were told, the answer lost"
	jobsTakenBack    = "asynchronous enqueues that a crash took back"
)

// Conditions of runs of jobs.
const (
	LateEnqueues       Condition = "late enqueues"
	Cancellations      Condition = "cancellations"
	TerminalHandlers   Condition = "terminal handlers"
	DiscardingHandlers Condition = "discarding handlers"
	DelayingHandlers   Condition = "delaying handlers"
	PanickingHandlers  Condition = "panicking handlers"
	HangingHandlers    Condition = "hanging handlers"
	UndoingHandlers    Condition = "undoing handlers"
	SnoozingHandlers   Condition = "snoozing handlers"
	StoppedWorkers     Condition = "stopped workers"
	LostWorkers        Condition = "lost workers"
	CappedQueues       Condition = "capped queues"
	CutClaims          Condition = "cut claims"
	CutEnds            Condition = "cut ends"
	RemovedNotes       Condition = "removed notes"
	UnsafeEnqueues     Condition = "unsafe enqueues"
	CutTicks           Condition = "cut ticks"
	PausedSchedules    Condition = "paused schedules"
	RemovedSchedules   Condition = "removed schedules"
	Deployments        Condition = "deployments"
	CutTells           Condition = "cut tells"
	AbortedFlows       Condition = "aborted flows"
	RevivedFlows       Condition = "revived flows"
	SkippingHandlers   Condition = "skipping handlers"
)

// jobStates are the states of a run of jobs.
var jobStates = []state{
	{name: jobsCompleted},
	{name: jobsFailedOften, needs: []Condition{FailingHandlers}, slow: 1.5},
	{name: jobsFailedAtOnce, needs: []Condition{TerminalHandlers}},
	{name: jobsLostForGood, needs: []Condition{LostWorkers}, slow: 1.5},
	{name: jobsDiscarded, needs: []Condition{DiscardingHandlers}},
	{name: jobsCancelled, needs: []Condition{Cancellations}},
	{name: cancelledAtStart, needs: []Condition{Cancellations}, slow: 4},
	{name: jobsCancelledIn, needs: []Condition{Cancellations}},
	{name: expiredUnclaimed},
	{name: expiredAtStart, slow: 4},
	{name: expiredBetween, slow: 6},
	{name: runsRetried, needs: []Condition{FailingHandlers}},
	{name: runsDelayed, needs: []Condition{DelayingHandlers}},
	{name: runsPanicked, needs: []Condition{PanickingHandlers}},
	{name: runsTimedOut, needs: []Condition{HangingHandlers}},
	{name: runsUndone, needs: []Condition{UndoingHandlers}},
	{name: runsCutOff, needs: []Condition{WorkersLostAtCommit}},
	{name: runsSnoozed, needs: []Condition{SnoozingHandlers}},
	{name: batchesHalved, needs: []Condition{PanickingHandlers}, slow: 2},
	{name: runsReleased, needs: []Condition{StoppedWorkers}},
	{name: prefetchedBack, needs: []Condition{StoppedWorkers}, slow: 3},
	{name: runsLost, needs: []Condition{LostWorkers}},
	{name: prefetchedLost, needs: []Condition{LostWorkers}, slow: 2.5},
	{name: zombiesRefused, needs: []Condition{Zombies}, slow: 2.5},
	{name: zombieCommits, needs: []Condition{Zombies}, slow: 6},
	{name: claimsUnsent, needs: []Condition{CutClaims}, slow: 3},
	{name: claimsUnheard, needs: []Condition{CutClaims}},
	{name: runsAdopted, needs: []Condition{CutClaims}},
	{name: endsUnsent, needs: []Condition{CutEnds}, slow: 1.5},
	{name: endsRepeated, needs: []Condition{CutEnds}, slow: 2},
	{name: commitsUnsent, needs: []Condition{WorkersLostAtCommit}},
	{name: commitsDoubted, needs: []Condition{WorkersLostAtCommit}},
	{name: committedLate, needs: []Condition{LateEnqueues}},
	{name: nativeCommits},
	{name: keysTaken, slow: 2},
	{name: onceTaken, slow: 2},
	{name: keysFreed},
	{name: capReached, needs: []Condition{CappedQueues}},
	{name: capOfAllReached, needs: []Condition{CappedQueues}, slow: 2},
	{name: resultsAwaited, slow: 3},
	{name: jobsAsked},
	{name: eventsLate, needs: []Condition{LateEnqueues}, slow: 6},
	{name: eventsAgain, needs: []Condition{ConsumersSetBack}},
	{name: eventsByCopy},
	{name: notesRemoved, needs: []Condition{RemovedNotes}, slow: 6},
	{name: jobsLeaders},
	{name: ticksEnqueued},
	{name: ticksByAnother},
	{name: ticksCaughtUp},
	{name: ticksMissed},
	{name: ticksPaused, needs: []Condition{PausedSchedules}},
	{name: ticksFought},
	{name: ticksUnsent, needs: []Condition{CutTicks}, slow: 3},
	{name: ticksUncommitted, needs: []Condition{CutTicks}, slow: 1.5},
	{name: timesReplaced, needs: []Condition{Deployments}},
	{name: schedulesRemade, needs: []Condition{RemovedSchedules}},
	{name: flowsCompleted},
	{name: flowsFailed},
	{name: flowsCancelled},
	{name: flowsRetried, needs: []Condition{RevivedFlows}},
	{name: flowJoins},
	{name: joinsAtOnce},
	{name: stepsSkipped},
	{name: stepsUnneeded, needs: []Condition{SkippingHandlers}},
	{name: listsSpread},
	{name: listsOfNone},
	{name: endsSwept},
	{name: tellsUnsent, needs: []Condition{CutTells}, slow: 4},
	{name: tellsRepeated, needs: []Condition{CutTells}, slow: 8},
	{name: jobsTakenBack, needs: []Condition{UnsafeEnqueues, ServerCrashes}, slow: 2},
}

// jobPoints are the states that a cut of a worker of jobs reaches, by the point of the cut.
var jobPoints = map[string]string{
	history.BeforeClaim: claimsUnsent, history.AfterClaim: claimsUnheard,
	history.BeforeEnd: endsUnsent, history.AfterEnd: endsRepeated,
	history.BeforeTick: ticksUnsent, history.AfterTick: ticksUncommitted,
	history.BeforeTell: tellsUnsent, history.AfterTell: tellsRepeated,
	history.BeforeCommit: commitsUnsent, history.AfterCommit: commitsDoubted,
}
