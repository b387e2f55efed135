package table

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/observe"
)

// Options describe a table of jobs. R is the type that the handler gets for a row. The expressions
// are SQL of the program, and become part of statements unchanged.
type Options[R any] struct {
	// TableName names the table, optionally with a schema and with an alias for the expressions:
	// "example_jobs", "infra.example_jobs AS j". Write a name with capitals without quotes. It
	// stands for itself or, as in SQL, for the name in lower case.
	TableName string
	// ViewName names the relation from which claimed rows are read, in the same form. It may be a
	// view that joins data for the handler. The view has the ID column of the table, and shows all
	// rows of the table, none twice. By default it is the table.
	ViewName string
	// AlternateColumnNames maps column names to other names in the table: {"state": "status"}. The
	// name of id applies to the view too. Capitals are as in TableName.
	AlternateColumnNames map[string]string
	// ColumnExpressions are selected from the view for Scan.
	ColumnExpressions []string
	// Scan reads the ColumnExpressions of one row. If Scan returns an error, the job has failed as
	// if its handler had returned the error. Scan has ten seconds in all.
	Scan func(Row) (R, error)
	// OrderByExpression sets the order in which rows are claimed: "j.priority DESC, j.id". By
	// default the lowest IDs are first. Give the expression an index: see "Indexes".
	OrderByExpression string
	// Condition restricts the worker to rows that meet it: "j.region = 'eu'". By default there is
	// none.
	Condition string
	// MaxNumRetries is the number of failures after which a job has failed for good, the first
	// failure included. With 0, the default, and 1 nothing is retried.
	MaxNumRetries int
	// RetryAfter is the delay between a failure and the retry. Set both RetryAfter and
	// MaxNumRetries, or neither.
	RetryAfter time.Duration
	// StalledMaxAge is the time without a heartbeat after which a job counts as lost with its
	// worker: 30 s by default. All stores of a table must have the same.
	StalledMaxAge time.Duration
	// MaxNumResets is how often a job that was lost with its worker runs again before it has
	// failed: 5 by default. Below 0, a lost job does not run again.
	MaxNumResets int
	// ResetFailureMessage is the failure_message of a job that was lost too often.
	ResetFailureMessage string
}

// Row is the row that Scan reads. Its Scan takes the values of the ColumnExpressions.
type Row interface{ Scan(dest ...any) error }

const (
	defaultStalledMaxAge = 30 * time.Second
	defaultMaxNumResets  = 5
	defaultResetMessage  = "each worker that ran this job was lost, too often"
)

// settings are the Options with defaults applied and names parsed, without the record type.
type settings struct {
	table, view         relation
	columns             map[string]string // by documented name
	expressions         []string
	order, condition    string
	most                int // failures
	retryAfter, stalled time.Duration
	resets              int
	resetMessage        string
}

// relation is a table or a view, and its name in expressions.
type relation struct {
	ident.Table // as found; before that in lower case
	written     ident.Table
	alias       string
	aliased     bool // false: the alias is the name
}

// settings checks the options. The error names each problem.
func (o Options[R]) settings() (settings, error) {
	var all []error
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	s := settings{
		columns: map[string]string{}, expressions: o.ColumnExpressions, order: o.OrderByExpression, condition: o.Condition,
		most: o.MaxNumRetries, retryAfter: o.RetryAfter, stalled: o.StalledMaxAge, resets: o.MaxNumResets, resetMessage: o.ResetFailureMessage,
	}
	s.stalled, s.resetMessage = cmp.Or(s.stalled, defaultStalledMaxAge), cmp.Or(s.resetMessage, defaultResetMessage)
	s.resets = max(cmp.Or(s.resets, defaultMaxNumResets), 0)
	var err error
	if s.table, err = parseRelation("TableName", o.TableName); err != nil {
		all = append(all, err)
	}
	s.view = s.table
	if o.ViewName != "" {
		if s.view, err = parseRelation("ViewName", o.ViewName); err != nil {
			all = append(all, err)
		}
	}
	for _, c := range columns {
		s.columns[c.name] = c.name
	}
	for name, other := range o.AlternateColumnNames {
		if _, known := s.columns[name]; !known {
			fail("AlternateColumnNames: there is no column %s: its keys are the names that the documentation uses", errtext.Value(name))
		} else if err := ident.Check("AlternateColumnNames: "+name, other); err != nil {
			all = append(all, err)
		}
		s.columns[name] = other
	}
	if err := distinct(s.columns); err != nil {
		all = append(all, err)
	}
	if len(o.ColumnExpressions) == 0 {
		fail("ColumnExpressions: there are none: name what Scan reads")
	}
	for i, e := range o.ColumnExpressions {
		if strings.TrimSpace(e) == "" {
			fail("ColumnExpressions: number %d is empty", i+1)
		}
	}
	if o.Scan == nil {
		fail("Scan is nil: give the function that reads a row")
	}
	all = append(all, s.checkNumbers()...)
	return s, errtext.Join(all...)
}

// checkNumbers returns an error for each number out of range.
func (s settings) checkNumbers() (all []error) {
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	all = append(all, errtext.Range("MaxNumRetries", s.most, 0, math.MaxInt32, false, ""), errtext.Range("RetryAfter", s.retryAfter, 0, longestDelay, false, ""),
		errtext.Range("StalledMaxAge", s.stalled, minStalled, day, false, ""))
	if s.most > 1 != (s.retryAfter > 0) {
		fail("MaxNumRetries is %d and RetryAfter is %v: for retries give 2 failures or more and a time, for none neither", s.most, s.retryAfter)
	}
	if s.resets > math.MaxInt32 {
		fail("MaxNumResets: %d is out of range, allowed is up to %d", s.resets, math.MaxInt32)
	}
	if strings.ContainsRune(s.resetMessage, 0) {
		fail("ResetFailureMessage is no text that PostgreSQL can hold")
	}
	return all
}

// distinct returns an error if two columns have the same name.
func distinct(columns map[string]string) error {
	of := map[string]string{}
	for name, actual := range columns {
		if other, taken := of[actual]; taken {
			return fmt.Errorf("AlternateColumnNames: %s and %s are both column %s", min(name, other), max(name, other), errtext.Value(actual))
		}
		of[actual] = name
	}
	return nil
}

// parseRelation parses "table", "table alias" or "table AS alias", with or without a schema.
func parseRelation(option, text string) (r relation, err error) {
	words := strings.Fields(text)
	if len(words) == 3 && strings.EqualFold(words[1], "AS") {
		words = []string{words[0], words[2]}
	}
	if len(words) == 0 || len(words) > 2 {
		return r, fmt.Errorf(`%s: %s is no name: use "table", "schema.table" or "table AS alias"`, option, errtext.Value(text))
	}
	if r.Table, err = ident.ParseTable(option, words[0]); err != nil {
		return r, err
	}
	r.written.Name = words[0]
	if schema, name, qualified := strings.Cut(words[0], "."); qualified {
		r.written = ident.Table{Schema: schema, Name: name}
	}
	r.alias = r.Name
	if len(words) == 2 {
		if err := ident.Check(option, words[1]); err != nil {
			return r, err
		}
		r.alias, r.aliased = strings.ToLower(words[1]), true
	}
	return r, nil
}

const (
	day = 24 * time.Hour
	// longestDelay bounds delays: PostgreSQL's timestamps have an upper limit.
	longestDelay = 100 * 365 * day
	minStalled   = 100 * time.Millisecond
	// maxHandlers bounds how many jobs one statement claims.
	maxHandlers = 10_000
)

// WorkerOptions set how a worker runs. The zero value has the defaults.
type WorkerOptions struct {
	// NumHandlers is how many jobs run at once: 10 by default.
	NumHandlers int
	// Interval is how often an idle worker polls: a second by default. A pause is shortened by a
	// random part of up to a quarter.
	Interval time.Duration
	// MaxInterval lets the pause between two polls double while no row is found, from Interval up
	// to MaxInterval. So a row that becomes due may wait for up to MaxInterval. The default is
	// Interval, the maximum a day. After the end of a job the worker polls after Interval.
	MaxInterval time.Duration
	// HeartbeatInterval is how often the worker writes last_heartbeat_at of its running rows and
	// reads whether they were cancelled. One statement does both for all rows. The default is a
	// fifth of StalledMaxAge, and 5 s at most.
	HeartbeatInterval time.Duration
	// MaximumRuntimePerJob bounds a run including its PreHandle. Then its context ends with
	// [ErrTimeout], and the job has a failure. A handler or hook that ignores the end of its context
	// for ten seconds is given up. Its job runs again on a worker, and its slot stays taken until it
	// returns. With 0, the default, there is no bound.
	MaximumRuntimePerJob time.Duration
	// StartLimit is for how long Start retries while the database cannot be reached, 10ms to a
	// year. With 0, the default, Start retries for ever. Each failed try is notified as
	// [observe.StatementFailed].
	StartLimit time.Duration
	// NumTotalJobs ends the worker, as Stop does, once it has claimed this many jobs. With 0, the
	// default, there is no bound.
	NumTotalJobs int
	// MaxActiveTime ends the worker, as Stop does, when it has run for this long. With 0, the
	// default, there is no bound.
	MaxActiveTime time.Duration
	// ShutdownTimeout is how long a stop waits for the running jobs. Then their contexts end, and
	// the jobs are queued again without a failure. By default a stop waits for as long as the jobs
	// take. Set less than the platform's time before SIGKILL.
	ShutdownTimeout time.Duration
	// WorkerHostname names the machine in the column worker_hostname, before a slash and the
	// worker's ID. The default is $HOSTNAME or, without one, the name that the system gives.
	WorkerHostname string
	// Observers get the worker's events.
	Observers []observe.Observer
	// Logger logs the worker's events, as [observe.Log] does. By default warnings and errors go to
	// slog.Default. To silence the worker, give slog.New(slog.DiscardHandler).
	Logger *slog.Logger
}

// withDefaults returns the options with defaults applied. stalled is the StalledMaxAge of the
// store.
func (o WorkerOptions) withDefaults(stalled time.Duration) WorkerOptions {
	o.NumHandlers, o.Interval = cmp.Or(o.NumHandlers, 10), cmp.Or(o.Interval, time.Second)
	o.MaxInterval = cmp.Or(o.MaxInterval, o.Interval)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, min(stalled/5, 5*time.Second))
	o.WorkerHostname = cmp.Or(o.WorkerHostname, jobrun.Hostname())
	return o
}

// check returns an error that lists every option out of range.
func (o WorkerOptions) check(stalled time.Duration) error {
	var all []error
	if o.NumTotalJobs < 0 {
		all = append(all, fmt.Errorf("NumTotalJobs: %d is out of range, it takes 0 for no bound, or more", o.NumTotalJobs))
	}
	if o.HeartbeatInterval > stalled/3 {
		all = append(all, fmt.Errorf("HeartbeatInterval: %v is out of range, StalledMaxAge (%v) must be three of it or more", o.HeartbeatInterval, stalled))
	}
	return errtext.Join(append(all, ident.CheckHost("WorkerHostname", o.WorkerHostname),
		errtext.Range("NumHandlers", o.NumHandlers, 1, maxHandlers, false, ""),
		errtext.Range("Interval", o.Interval, time.Millisecond, time.Hour, false, ""),
		errtext.Range("MaxInterval", o.MaxInterval, o.Interval, day, false, "Interval"),
		errtext.Range("HeartbeatInterval", o.HeartbeatInterval, 10*time.Millisecond, time.Hour, false, ""),
		errtext.Range("MaximumRuntimePerJob", o.MaximumRuntimePerJob, time.Millisecond, 365*day, true, ""),
		errtext.Range("StartLimit", o.StartLimit, 10*time.Millisecond, 365*day, true, ""),
		errtext.Range("MaxActiveTime", o.MaxActiveTime, time.Millisecond, 365*day, true, ""),
		errtext.Range("ShutdownTimeout", o.ShutdownTimeout, 10*time.Millisecond, 365*day, true, ""))...)
}

var errNoHandle = errors.New("the Handle of the Handler is nil: give the function that runs a job")
