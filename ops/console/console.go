package console

import (
	"cmp"
	"context"
	"database/sql"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// Level is what an operator may see and change. Each level includes the lower levels.
type Level int

const (
	None     Level = iota // nothing
	Read                  // all but payloads. Texts of errors are shown, and may hold values of users
	Payloads              // payloads and metadata of events, arguments and results of jobs, queries of blockers
	Operate               // changes
)

// Grant names an operator, and what the operator may see and change.
type Grant struct {
	Operator string // is recorded with each change; at most 200 bytes. Without one nothing is changed
	Level    Level
	// Allow narrows Operate: it reports whether a change may be made. nil: all may be.
	Allow func(Action) bool
}

// What an [Action] is on.
const (
	OnConsumer  = "consumer"
	OnJob       = "job"
	OnQueue     = "queue"
	OnSchedule  = "schedule"
	OnFlow      = "flow"
	OnWorker    = "worker"     // of consumers
	OnJobWorker = "job worker" // of jobs
)

// Action is a change that an operator requests.
type Action struct {
	On   string // OnConsumer, OnJob, OnQueue, OnSchedule, OnFlow, OnWorker or OnJobWorker
	Kind ops.Kind
	Name string // of the consumer, the queue or the schedule; the ID of the worker; of a job, that of its queue; of a run, that of its flow. ops.AllQueues: of all queues, also of jobs by a filter that names none
}

func (g Grant) allows(a Action) bool {
	return g.Level >= Operate && g.Operator != "" && (g.Allow == nil || g.Allow(a))
}

// Options say how a Console works. The zero Options are of use.
type Options struct {
	// Access returns what the sender of a request may see and change. The console calls it for each
	// request, except for styles and scripts. Default nil: every sender has Read.
	Access func(*http.Request) Grant
	// Payload formats the payload of an event as text. The console calls it for senders who may see
	// payloads. Default nil: text is shown as it is, any other payload in hexadecimal.
	Payload func(context.Context, store.PersistedEvent) (string, error)
	// Environment names the deployment, such as "production". Every page shows it after the name of
	// the database. Default empty: pages show the name of the database alone.
	Environment string
	// Names are the names of the tables of the workers, the event store and jobs.
	Names store.Names
}

const (
	nameLimit   = time.Second      // the bound of the read of the database's name; without an answer, pages show no name
	readLimit   = 5 * time.Second  // the bound of a page's reads
	changeLimit = 15 * time.Second // the bound of a change, which also waits for a batch in flight
	maxBody     = 64 << 10         // bytes of a form
	perPage     = 50
)

// Console is a handler. Any number of goroutines may use it.
type Console struct {
	o         Options
	db        *sql.DB
	consumers *ops.Operator
	jobs      *ops.Jobs
	broken    error                  // why no page can be shown
	database  atomic.Pointer[string] // its name, once it is known
	guarded   http.Handler
	live      sampler
}

// New makes a Console. It does not touch the database. If db is nil or a name of
// Options.Names is not valid, every page says so.
func New(db *sql.DB, o Options) *Console {
	c := &Console{o: o, db: db}
	if c.consumers, c.broken = ops.New(db, ops.WithNames(o.Names)); c.broken == nil {
		c.jobs, c.broken = ops.NewJobs(db, ops.WithNames(o.Names))
	}
	c.live.look = c.lookCloser
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, r, Grant{}, &refusal{http.StatusForbidden, "Another site has sent this form: nothing was changed. Open the console itself and send it from there."})
	}))
	c.guarded = guard.Handler(http.HandlerFunc(c.serve))
	return c
}

// Close ends all live updates and waits for them. Pages are still served, without updates. Call
// it when the server shuts down, see [http.Server.RegisterOnShutdown].
func (c *Console) Close() { c.live.close() }

// policy lets a page load from the console only, and execute nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers a request whose path is below that of the console: strip the prefix.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "same-origin", // with less, a form's Origin would be null
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
		"Vary":                         "Accept",
	} {
		w.Header().Set(name, value)
	}
	c.guarded.ServeHTTP(w, r)
}

// where names the database and the environment. It is empty for senders with Level None.
func (c *Console) where(ctx context.Context, g Grant) string {
	if g.Level <= None {
		return ""
	}
	name := c.database.Load()
	if name == nil && c.broken == nil {
		ctx, cancel := context.WithTimeout(ctx, nameLimit)
		defer cancel()
		name = new(string)
		if c.db.QueryRowContext(ctx, `SELECT current_database()`).Scan(name) != nil {
			name = nil // another page asks again
		}
		c.database.Store(name)
	}
	var known []string
	if name != nil {
		known = append(known, *name)
	}
	if c.o.Environment != "" {
		known = append(known, c.o.Environment)
	}
	return strings.Join(known, ", ")
}

func (c *Console) serve(w http.ResponseWriter, r *http.Request) {
	if beside(w, r) {
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if asset(w, r, name) {
		return
	}
	grant := Grant{Level: Read}
	if c.o.Access != nil {
		grant = c.o.Access(r)
	}
	method := cmp.Or(map[string]string{changePath: http.MethodPost}[name], http.MethodGet)
	v, known := views[name]
	switch {
	case grant.Level <= None:
		c.fail(w, r, grant, &refusal{http.StatusForbidden, "You have no access to this console. Log in to the application, or ask who runs it."})
	case !known && !slices.Contains([]string{changePath, livePath, operationsCSV, jobsOperationsCSV}, name):
		c.fail(w, r, grant, &refusal{http.StatusNotFound, "There is no such page."})
	case r.Method != method && (r.Method != http.MethodHead || method != http.MethodGet):
		w.Header().Set("Allow", method)
		c.fail(w, r, grant, &refusal{http.StatusMethodNotAllowed, "This page does not take " + r.Method + " requests."})
	case c.broken != nil:
		c.fail(w, r, grant, c.broken)
	case name == changePath:
		c.change(w, r, grant)
	case name == livePath:
		c.stream(w, r, grant)
	case name == operationsCSV:
		c.downloadOperations(w, r, grant)
	case name == jobsOperationsCSV:
		c.downloadJobsOperations(w, r, grant)
	default:
		c.view(w, r, grant, name, v)
	}
}

// beside redirects a request for "/pgfrontier", which routers other than that of net/http let
// through, to "/pgfrontier/": from there the relative links lead on.
func beside(w http.ResponseWriter, r *http.Request) bool {
	asked, err := url.ParseRequestURI(r.RequestURI)
	if r.URL.Path != "" || err != nil || strings.HasSuffix(asked.Path, "/") {
		return false
	}
	to := url.URL{Path: "./" + path.Base(asked.Path) + "/", RawQuery: asked.RawQuery}
	w.Header().Set("Location", to.String())
	w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}
