package console

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

// New makes a Console. It does not touch the database. If db is nil or a name of
// Options.Names is not valid, every page says so.
func New(db *sql.DB, o Options) *Console {
	c := &Console{o: o, reads: reads{eventReads: eventReads{db: db, names: o.Names, payload: o.Payload, comparisons: o.Comparisons}}}
	if c.reads.consumers, c.broken = ops.New(db, ops.WithNames(o.Names)); c.broken == nil {
		c.reads.jobs, c.broken = ops.NewJobs(db, ops.WithNames(o.Names))
	}
	for i, one := range o.Comparisons {
		if slices.ContainsFunc(o.Comparisons[:i], func(c ops.Comparison) bool { return c.Old == one.Old && c.New == one.New }) {
			c.broken = fmt.Errorf("console: Options.Comparisons has two of %s and %s: make them one by UNION ALL", errtext.Value(one.Old), errtext.Value(one.New))
		}
	}
	c.live.look, c.live.history = c.reads.lookCloser, &c.reads.history
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
	v, known := views[name]
	method := http.MethodGet
	if name == changePath || v.posts && r.Method == http.MethodPost {
		method = http.MethodPost
	}
	switch {
	case grant.Level <= None:
		c.fail(w, r, grant, &refusal{http.StatusForbidden, "You have no access to this console. Log in to the application, or ask who runs it."})
	case !known && !slices.Contains([]string{changePath, livePath, operationsCSV, jobsOperationsCSV}, name):
		c.fail(w, r, grant, &refusal{http.StatusNotFound, "There is no such page."})
	case r.Method != method && (r.Method != http.MethodHead || method != http.MethodGet):
		if v.posts {
			method += ", " + http.MethodPost
		}
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

// beside redirects "/pgfrontier" to "/pgfrontier/", from where the relative links lead on. The
// router of net/http does so itself, other routers let such a request through.
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

func (c *Console) view(w http.ResponseWriter, r *http.Request, g Grant, name string, v view) {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	var invalid error
	q := query{r.URL.Query(), &invalid}
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxBuild)
		if err := unread(r.ParseForm()); err != nil {
			c.fail(w, r, g, err)
			return
		}
		q.Values = r.PostForm
	}
	data, err := v.read(&c.reads, ctx, q, g)
	if invalid != nil {
		err = invalid
	}
	if err != nil {
		c.fail(w, r, g, pgdriver.CutOff(ctx, err))
		return
	}
	p := &page{Title: v.title, Page: name, Grant: g, Data: data, Done: q.Get("done")}
	if named, ok := data.(interface{ heading() string }); ok {
		p.Title = named.heading()
	}
	if !slices.Contains(changes, ops.Kind(p.Done)) {
		p.Done = ""
	}
	if v.part != nil && q.Get("queries") == "" {
		p.Live = livePath + "?" + updatesOf(name, q.Values).Encode()
	}
	c.show(w, r, http.StatusOK, v.file, p)
}
