package history

// Jobs is the evidence of a run of jobs. What enqueuers, handlers, operators and
// workers did stems from the harness's own ledgers, the rest was read from the
// database. Times are seconds since the run began.
type Jobs struct {
	MaxAttempts int        `json:"max_attempts"`      // of the handlers
	Slowness    float64    `json:"slowness"`          // how many times as long as the reference the machine takes
	RescueBound float64    `json:"rescue_bound"`      // how long the jobs of a worker that has crashed may wait for another
	Forgetful   bool       `json:"forgetful"`         // the server crashed, and somebody had not waited for commits to be safe
	Workers     []Runner   `json:"workers"`           // all that ever ran
	Queues      []string   `json:"queues"`            //
	Rest        JobsRest   `json:"rest"`              //
	Misled      []string   `json:"misled,omitempty"`  // what the client did although it must not
	Waited      int        `json:"waited,omitempty"`  // times that Wait returned the result that was set
	Outages     []Outage   `json:"outages,omitempty"` // of the server
	Slow        []Outage   `json:"slow,omitempty"`    // of the machine
	DeadAfter   float64    `json:"dead_after"`        // how long after its last heartbeat the jobs of a worker are taken
	Emitted     Emitted    `json:"emitted"`           // what consumers of events did
	Schedules   []Schedule `json:"schedules"`         // that all workers have
	Fought      int64      `json:"fought"`            // times that a worker came second to a tick
	Flows       []Flow     `json:"flows"`             // of which runs are started

	Enqueued []Enqueued       `json:"-"` // by the enqueuers
	Cancels  []Cancel         `json:"-"` // by clients
	Runs     []JobRun         `json:"-"` // as the handlers saw them
	Told     []Told           `json:"-"` // by the workers' observers
	Effects  []Effect         `json:"-"` // rows of handlers that are given a transaction
	Finished []Finished       `json:"-"` // the table of finished jobs
	Left     []Unfinished     `json:"-"` // the table of unfinished jobs
	Attempts []JobAttempt     `json:"-"` // the table of attempts
	Steps    []JobStep        `json:"-"` // every change of a job's state, in order
	Claims   []CappedRun      `json:"-"` // claims of queues that an operator has capped or paused
	Resets   []JobReset       `json:"-"` // of workers that were taken for dead
	Changes  []ScheduleChange `json:"-"` // of the rows of schedules, in order
	Ticks    []Tick           `json:"-"` // that became jobs
	Started  []Enqueued       `json:"-"` // runs of flows, by the enqueuers
	Advances []FlowChange     `json:"-"` // of the rows of runs and their steps, in order
	StepJobs []StepJob        `json:"-"` // that runs of flows enqueued
}

// Runner is a worker of a run of jobs.
type Runner struct {
	Name    string `json:"name"`              // "worker 2.1": the first life of slot 2
	ID      string `json:"id"`                //
	Version int64  `json:"version,omitempty"` // of the program, which says what times schedules have
	Faulted bool   `json:"faulted,omitempty"` // it was crashed, cut off or stalled, or its server was away
	// GoneAt is when it crashed, 0 if it did not.
	GoneAt float64 `json:"gone_at,omitempty"`
}

// Outage is a time in which the server was away, a fault kept it from working as usual, or the
// machine did not keep up.
type Outage struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// Enqueued is what an enqueuer asked for.
type Enqueued struct {
	Token    string   `json:"token"` // in the arguments: no two have the same
	ID       int64    `json:"id"`    // as the client said
	Who      string   `json:"who"`
	Kind     string   `json:"kind"`
	Queue    string   `json:"queue"`
	Outcome  string   `json:"outcome"`
	At       float64  `json:"at"`                 // the answer to its COMMIT
	Existing bool     `json:"existing,omitempty"` // another job had the key
	Key      string   `json:"key,omitempty"`      // of Unique
	Once     string   `json:"once,omitempty"`     // key of Once
	Asked    bool     `json:"asked,omitempty"`    // a consumer enqueues the job for an event: its ID is 0
	Flow     string   `json:"flow,omitempty"`     // it is a run of that flow, and no job
	Far      bool     `json:"far,omitempty"`      // due long after the run
	Acts     []string `json:"acts,omitempty"`     // what its handler is to do, run by run
}

// What became of the transaction of an enqueuer.
const (
	EnqueueCommitted  = "committed"
	EnqueueRolledBack = "rolled back"
	EnqueueUnsure     = "unsure" // a crash may have taken it back
)

// Cancel is a client's request to end a job.
type Cancel struct {
	ID  int64   `json:"id"`
	Was string  `json:"was,omitempty"` // the state in which it was found; empty: no answer
	At  float64 `json:"at"`
}

// JobRun is a call of a handler with a job.
type JobRun struct {
	Token   string  `json:"token"`
	ID      int64   `json:"id"`
	Attempt int     `json:"attempt"`
	Worker  string  `json:"worker"` // its id
	Name    string  `json:"name"`   // of the worker
	Began   float64 `json:"began"`
	Ended   float64 `json:"ended,omitempty"` // 0: never, its process was gone
	Outcome string  `json:"outcome,omitempty"`
}

// HandlerRun is a call of a handler with a job. The worker's process reports it when the call
// begins, and again when it has ended.
type HandlerRun struct {
	N int `json:"n"` // number of the call in its process
	JobRun
}

// What a handler did with a job.
const (
	RunOK        = "ok"        // it returned nil
	RunFailed    = "error"     // it returned an error to be tried again
	RunDelayed   = "retry"     // likewise, and said when
	RunSnoozed   = "snooze"    //
	RunTerminal  = "fail"      // it returned an error for good
	RunDiscarded = "discard"   //
	RunPanicked  = "panic"     // or ended its goroutine
	RunEnded     = "ended"     // its context ended
	RunUnknown   = "unknown"   // its own COMMIT was not answered
	RunUndone    = "undone"    // it rolled its completion back, and returned nil
	RunWithBatch = "its batch" // another job of its batch failed
)

// Told is what a worker said of a run.
type Told struct {
	Worker  string `json:"worker"`
	ID      int64  `json:"id"`
	Attempt int    `json:"attempt"`
	Lost    bool   `json:"lost,omitempty"`  // to another worker
	State   string `json:"state,omitempty"` // of the job, after it
}

// Effect is a row that a handler wrote in the transaction that completes its job.
type Effect struct {
	Token   string `json:"token"`
	ID      int64  `json:"id"`
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
}

// Finished is a row of the table of finished jobs.
type Finished struct {
	ID          int64    `json:"id"`
	Token       string   `json:"token"`
	Kind        string   `json:"kind"`
	Queue       string   `json:"queue"`
	State       string   `json:"state"`
	Attempt     int      `json:"attempt"`
	Failures    int      `json:"failures"`
	Resets      int      `json:"resets"`
	MaxResets   int      `json:"max_resets"`
	MaxAttempts int      `json:"max_attempts,omitempty"` // 0: as its handler has it
	Worker      string   `json:"worker,omitempty"`       // of the run that ended it
	Claim       int64    `json:"claim,omitempty"`
	CancelAsked bool     `json:"cancel_asked,omitempty"`
	StartedAt   *float64 `json:"started_at,omitempty"`
	GoodUntil   *float64 `json:"good_until,omitempty"`
	FinishedAt  float64  `json:"finished_at"`
	Code        string   `json:"code,omitempty"`
	Result      string   `json:"result,omitempty"`
}

// Unfinished is a row of the table of unfinished jobs, when all had come to rest.
type Unfinished struct {
	ID      int64   `json:"id"`
	Token   string  `json:"token"`
	Kind    string  `json:"kind"`
	Queue   string  `json:"queue"`
	State   string  `json:"state"`
	Attempt int     `json:"attempt"`
	Worker  string  `json:"worker,omitempty"`
	DueIn   float64 `json:"due_in"`            // below 0: it was due so long ago
	Expired bool    `json:"expired,omitempty"` // the leader is still to remove it
}

// JobAttempt is a row of the table of attempts: a run that did not finish its job.
type JobAttempt struct {
	ID        int64    `json:"id"`
	Attempt   int      `json:"attempt"`
	Worker    string   `json:"worker"`
	Claim     int64    `json:"claim"`
	StartedAt *float64 `json:"started_at,omitempty"`
	GoodUntil *float64 `json:"good_until,omitempty"` // of its job, if that has finished
	Outcome   string   `json:"outcome"`
	Code      string   `json:"code,omitempty"`
}

// JobStep is a change of a job's state, as the database made it.
type JobStep struct {
	At       float64 `json:"at"`
	ID       int64   `json:"id"`
	Was      string  `json:"was,omitempty"`   // empty: it was enqueued
	State    string  `json:"state,omitempty"` // empty: it left the table
	Attempt  int     `json:"attempt"`
	Claim    int64   `json:"claim,omitempty"`
	Queue    string  `json:"queue"`
	Priority int     `json:"priority"`
	RunAt    float64 `json:"run_at"`
	Bounded  bool    `json:"bounded,omitempty"` // it has a GoodUntil
	Key      string  `json:"key,omitempty"`     // that it holds
}

// CappedRun is a claim of a queue, as it was counted in the claim's transaction.
type CappedRun struct {
	At      float64 `json:"at"`
	Queue   string  `json:"queue"`
	Cap     *int64  `json:"cap,omitempty"`
	Running int64   `json:"running"`
	All     *int64  `json:"all,omitempty"` // the cap of all queues
	Total   int64   `json:"total"`         // running, of all queues
	Paused  bool    `json:"paused,omitempty"`
}

// JobReset is a run that was taken from a worker that counted as dead.
type JobReset struct {
	At      float64 `json:"at"`
	ID      int64   `json:"id"`
	Attempt int     `json:"attempt"`
	Worker  string  `json:"worker"`
	Started bool    `json:"started"`
	Alive   bool    `json:"alive,omitempty"` // its heartbeat was fresh
}

// JobsRest is how the jobs came to rest.
type JobsRest struct {
	Took    float64 `json:"took"`
	Bound   float64 `json:"bound"`
	Due     int64   `json:"due"`     // jobs that were due then
	Running int64   `json:"running"` //
	Behind  int64   `json:"behind"`  // positions of events that consumers had not settled
	Overdue int64   `json:"overdue"` // schedules whose next tick nobody came to
	Flows   int64   `json:"flows"`   // runs of flows that had not ended
}

// Emitted is what the consumers of events did that enqueue jobs, as far as it was
// committed.
type Emitted struct {
	Workers int   `json:"workers"` // that ran them; 0: no event asked for a job
	Handled int64 `json:"handled"` // events, by all of them, again and again
	Again   int64 `json:"again"`   // of these, after the consumer was set back
	Late    int64 `json:"late"`    // of these, that appeared after they had been passed
	ByCopy  int64 `json:"by_copy"` // of these, by the copy that enqueues in another's name
	Settled int64 `json:"settled"` // events whose notes were removed
}

// Schedule is a schedule of all workers. The times of a version are the multiples of its
// period, in microseconds since the epoch; the versions take turns.
type Schedule struct {
	Name    string  `json:"name"`
	CatchUp int     `json:"catch_up"`
	Periods []int64 `json:"periods"`
}

// ScheduleChange is a change of the row of a schedule, as the database made it. Times are
// microseconds since the epoch, 0 for none.
type ScheduleChange struct {
	At        int64  `json:"at"`
	Tx        string `json:"tx"`
	Who       string `json:"who"` // "sim worker 2.1"
	Schedule  string `json:"schedule"`
	WasHash   string `json:"was_hash,omitempty"` // of its times; empty: there was no row
	Hash      string `json:"hash,omitempty"`     // empty: it was removed
	Was       int64  `json:"was,omitempty"`      // its next tick
	Next      int64  `json:"next,omitempty"`
	WasPaused bool   `json:"was_paused,omitempty"`
	Paused    bool   `json:"paused,omitempty"`
	Resumed   int64  `json:"resumed,omitempty"` // the last time that it was
}

// Tick is a job that a schedule enqueued, as the database recorded it. Times are
// microseconds since the epoch.
type Tick struct {
	At       int64  `json:"at"`
	Tx       string `json:"tx"`
	Schedule string `json:"schedule"`
	Tick     int64  `json:"tick"`
	ID       int64  `json:"id"`
	Kind     string `json:"kind"`
	Queue    string `json:"queue"`
	Token    string `json:"token"` // "tick quick 1767225600250000": what the schedule made of the tick
}

// Flow is steps that depend on each other, in the order of their places.
type Flow struct {
	Name  string     `json:"name"`
	Steps []FlowStep `json:"steps"`
}

// FlowStep is a step of a flow. It depends on some of those before it.
type FlowStep struct {
	Name     string     `json:"name"`
	Kind     string     `json:"kind"` // of its job, or jobs
	Queue    string     `json:"queue"`
	After    []FlowEdge `json:"after,omitempty"`
	Quorum   int        `json:"quorum,omitempty"`   // good ends that suffice, of a Map step: of its jobs; 0: all
	Optional bool       `json:"optional,omitempty"` // its failure is as good as its completion
	Map      bool       `json:"map,omitempty"`      // a job for each element of the list that After[0] makes
}

// FlowEdge is how a step depends on one before.
type FlowEdge struct {
	Step  int    `json:"step"`            // its place
	On    string `json:"on"`              //
	Least int    `json:"least,omitempty"` // elements that its list must have; 0: any number
}

// The ends on which a step depends.
const (
	OnSuccess = "success"
	OnFailure = "failure"
	OnEnd     = "end"
)

// FlowChange is a change of the row of a run, or of a step of a run, as the database made
// it.
type FlowChange struct {
	At        float64 `json:"at"`
	Tx        string  `json:"tx"`
	Who       string  `json:"who"` // "sim worker 2.1"
	Run       int64   `json:"run"`
	Flow      string  `json:"flow,omitempty"`  // of a run's row, with its key
	Key       string  `json:"key,omitempty"`   //
	Step      int     `json:"step"`            // the step's place; of a run's row: 0
	Item      int     `json:"item,omitempty"`  // of a list, from 1; 0: it is the step itself
	Was       string  `json:"was,omitempty"`   // empty: there was no row
	State     string  `json:"state,omitempty"` // empty: it was removed
	Job       int64   `json:"job,omitempty"`
	Cancelled bool    `json:"cancelled,omitempty"` // the run was
}

// StepJob is a job that a run of a flow enqueued, as the database recorded it.
type StepJob struct {
	At    float64 `json:"at"`
	Run   int64   `json:"run"`
	Step  int     `json:"step"`
	Item  int     `json:"item,omitempty"`
	ID    int64   `json:"id"`
	Kind  string  `json:"kind"`
	Queue string  `json:"queue"`
	Token string  `json:"token"` // "flow 3-17/join": what the run's key and the step's name make
}

// JobDone is a run of a job, for the picture.
type JobDone struct {
	ID      int64   `json:"id"`
	Kind    string  `json:"kind"`
	Attempt int     `json:"attempt"`
	State   string  `json:"state"` // of the job, after it; "lost": it is another's
	TookMS  float64 `json:"took_ms"`
	Error   string  `json:"error,omitempty"`
}
