package table

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/observe"
)

// Options describe a table of jobs, and what is done with its rows. R is what the
// handler is given of a row. The expressions are SQL of yours, and go into statements
// as they are.
type Options[R any] struct {
	// TableName names the table, with a schema or without, and with an alias for the
	// expressions or without: "example_jobs", "infra.example_jobs AS j". A name with
	// capitals is written without quotes: it stands for itself or, as in SQL, for the one
	// in lower case.
	TableName string
	// ViewName names what rows are read from once they are claimed, in the same way:
	// a view that joins what the handler needs, for one. It has the column id of the
	// table, and shows a row of the table once. It is the table by default.
	ViewName string
	// AlternateColumnNames has the columns that are called otherwise in the table:
	// {"state": "status"}. That of id holds for the view, too. Capitals are as in
	// TableName.
	AlternateColumnNames map[string]string
	// ColumnExpressions are selected from the view for Scan.
	ColumnExpressions []string
	// Scan reads one row of them. A job whose row it refuses has failed as if its
	// handler had returned the error. It has ten seconds.
	Scan func(Row) (R, error)
	// OrderByExpression says which rows of the table are claimed first:
	// "j.priority DESC, j.id". Without it, the lowest ids are. Give it an index: see
	// "Indexes".
	OrderByExpression string
	// Condition leaves all rows of the table alone that do not meet it:
	// "j.region = 'eu'". By default there is none.
	Condition string
	// MaxNumRetries is after how many failures a job has failed for good, the first
	// one included. 0, the default, and 1: nothing is tried again.
	MaxNumRetries int
	// RetryAfter is how long after a failure a job is tried again. Give both or none.
	RetryAfter time.Duration
	// StalledMaxAge is after what time without a heartbeat a job counts as lost with
	// its worker: 30 s by default. All stores of a table must have the same.
	StalledMaxAge time.Duration
	// MaxNumResets is how often a job that was lost with its worker is run again,
	// before it has failed: 5 times by default, below 0: not once.
	MaxNumResets int
	// ResetFailureMessage is the failure_message of a job that was lost too often.
	ResetFailureMessage string
}

// Row is the row that Scan reads. It takes a value for each of the ColumnExpressions.
type Row interface{ Scan(dest ...any) error }

const (
	defaultStalledMaxAge = 30 * time.Second
	defaultMaxNumResets  = 5
	defaultResetMessage  = "each worker that ran this job was lost, too often"
)

// settings are Options without the record, with defaults, taken apart.
type settings struct {
	table, view         relation
	columns             map[string]string // by the name that the documentation uses
	expressions         []string
	order, condition    string
	most                int // failures
	retryAfter, stalled time.Duration
	resets              int
	resetMessage        string
}

// relation is a table or a view, and its name in expressions.
type relation struct {
	ident.Table // as found, or before that in lower case
	written     ident.Table
	alias       string
	aliased     bool // else the alias is the name
}

// settings checks the options. The error names all that is wrong.
func (o Options[R]) settings() (settings, error) {
	var all []error
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	s := settings{
		columns: map[string]string{}, expressions: o.ColumnExpressions, order: o.OrderByExpression, condition: o.Condition,
		most: o.MaxNumRetries, retryAfter: o.RetryAfter, stalled: o.StalledMaxAge, resets: o.MaxNumResets, resetMessage: o.ResetFailureMessage,
	}
	if s.stalled == 0 {
		s.stalled = defaultStalledMaxAge
	}
	if s.resets == 0 {
		s.resets = defaultMaxNumResets
	}
	s.resets = max(s.resets, 0)
	if s.resetMessage == "" {
		s.resetMessage = defaultResetMessage
	}
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

// checkNumbers reports the numbers that are out of range.
func (s settings) checkNumbers() (all []error) {
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if s.most < 0 || s.most > math.MaxInt32 {
		fail("MaxNumRetries: %d is out of range, allowed is 0 to %d", s.most, math.MaxInt32)
	}
	if s.retryAfter < 0 || s.retryAfter > longestDelay {
		fail("RetryAfter: %v is out of range, allowed is 0 to %v", s.retryAfter, longestDelay)
	}
	if s.most > 1 != (s.retryAfter > 0) {
		fail("MaxNumRetries is %d and RetryAfter is %v: for retries give 2 failures or more and a time, for none neither", s.most, s.retryAfter)
	}
	if s.stalled < minStalled || s.stalled > day {
		fail("StalledMaxAge: %v is out of range, allowed is %v to %v", s.stalled, minStalled, day)
	}
	if s.resets > math.MaxInt32 {
		fail("MaxNumResets: %d is out of range, allowed is up to %d", s.resets, math.MaxInt32)
	}
	if strings.ContainsRune(s.resetMessage, 0) {
		fail("ResetFailureMessage is no text that PostgreSQL can hold")
	}
	return all
}

// distinct refuses two columns of the same name.
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

// parseRelation takes "table", "table alias" or "table AS alias", with a schema or
// without.
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
	// longestDelay bounds delays: PostgreSQL's timestamps end.
	longestDelay = 100 * 365 * day
	minStalled   = 100 * time.Millisecond
	// maxHandlers bounds what one statement claims.
	maxHandlers = 10_000
)

// WorkerOptions say how a worker runs. The zero value has the defaults.
type WorkerOptions struct {
	// NumHandlers is how many jobs run at once, 10 by default.
	NumHandlers int
	// Interval is how often an idle worker looks for rows, a second by default. A
	// random quarter is left out.
	Interval time.Duration
	// MaxInterval lets the pause between two looks double while no row is found, from
	// Interval up to it. So a new row, or one whose process_after has come, waits for as long. It is
	// Interval by default, and a day at most. The end of a job makes the worker look after Interval.
	MaxInterval time.Duration
	// HeartbeatInterval is how often last_heartbeat_at of the running rows is written,
	// all in one statement, and whether they were cancelled is read. By default it is
	// a fifth of StalledMaxAge, and 5 s at most.
	HeartbeatInterval time.Duration
	// MaximumRuntimePerJob bounds a run with its PreHandle: its context ends with
	// [ErrTimeout], and the job has a failure. 0, the default, is no bound.
	MaximumRuntimePerJob time.Duration
	// StartLimit is for how long Start tries again while the database cannot be reached, 10ms
	// to a year. 0, the default, is for ever. [observe.TableFailed] reports each try that fails.
	StartLimit time.Duration
	// NumTotalJobs ends the worker, as Stop does, once it has claimed so many jobs. 0,
	// the default, is no bound.
	NumTotalJobs int
	// MaxActiveTime ends the worker, as Stop does, when it has run for so long. 0, the
	// default, is no bound.
	MaxActiveTime time.Duration
	// ShutdownTimeout is how long a stop waits for the jobs that run. Then their
	// contexts end, and they are queued again uncounted. By default it waits for as
	// long as they take.
	ShutdownTimeout time.Duration
	// WorkerHostname names the machine in the column worker_hostname, before a slash
	// and the worker's ID. By default it is $HOSTNAME, or else what the system says.
	WorkerHostname string
	// Observers are called with what happens.
	Observers []observe.Observer
	// Logger logs what happens, as [observe.Log] does. By default warnings and errors go to
	// slog.Default; slog.New(slog.DiscardHandler) keeps the worker silent.
	Logger *slog.Logger
}

// withDefaults returns the options as they apply beside the store's.
func (o WorkerOptions) withDefaults(stalled time.Duration) WorkerOptions {
	if o.NumHandlers == 0 {
		o.NumHandlers = 10
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.MaxInterval == 0 {
		o.MaxInterval = o.Interval
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = min(stalled/5, 5*time.Second)
	}
	if o.WorkerHostname == "" {
		o.WorkerHostname = hostname()
	}
	return o
}

// hostname is of the environment, or else of the system.
func hostname() string {
	if h := os.Getenv("HOSTNAME"); h != "" {
		return h
	}
	h, _ := os.Hostname() // it is for people's eyes
	return h
}

// check reports all that is out of range.
func (o WorkerOptions) check(stalled time.Duration) error {
	var all []error
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	between := func(option string, d, low, high time.Duration, orZero bool) {
		if (d < low || d > high) && !(orZero && d == 0) {
			fail("%s: %v is out of range, allowed is %v to %v", option, d, low, high)
		}
	}
	if o.NumHandlers < 1 || o.NumHandlers > maxHandlers {
		fail("NumHandlers: %d is out of range, allowed is 1 to %d", o.NumHandlers, maxHandlers)
	}
	if o.NumTotalJobs < 0 {
		fail("NumTotalJobs: %d is out of range, it takes 0 for no bound, or more", o.NumTotalJobs)
	}
	between("Interval", o.Interval, time.Millisecond, time.Hour, false)
	between("MaxInterval", o.MaxInterval, o.Interval, day, false)
	between("HeartbeatInterval", o.HeartbeatInterval, 10*time.Millisecond, time.Hour, false)
	if 3*o.HeartbeatInterval > stalled {
		fail("HeartbeatInterval: %v is out of range, StalledMaxAge (%v) must be three of it or more", o.HeartbeatInterval, stalled)
	}
	between("MaximumRuntimePerJob", o.MaximumRuntimePerJob, time.Millisecond, 365*day, true)
	between("StartLimit", o.StartLimit, 10*time.Millisecond, 365*day, true)
	between("MaxActiveTime", o.MaxActiveTime, time.Millisecond, 365*day, true)
	between("ShutdownTimeout", o.ShutdownTimeout, 10*time.Millisecond, 365*day, true)
	if err := ident.CheckHost("WorkerHostname", o.WorkerHostname); err != nil {
		all = append(all, err)
	}
	return errtext.Join(all...)
}

var errNoHandle = errors.New("the Handle of the Handler is nil: give the function that runs a job")
