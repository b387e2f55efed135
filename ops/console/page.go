package console

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/demand"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

//go:embed files
var files embed.FS

// assets are served as they are, to everybody.
var assets = map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}

func asset(w http.ResponseWriter, r *http.Request, name string) bool {
	kind, ok := assets[name]
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	text, _ := files.ReadFile("files/" + name) // embedded: always there
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(text)
	return true
}

// templates has a set for each page: the layout, the parts that pages share, and the page.
var templates = parseAll()

func parseAll() map[string]*template.Template {
	shared := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "files/layout.html", "files/parts.html"))
	all := map[string]*template.Template{}
	pages, _ := files.ReadDir("files") // embedded: always there
	for _, f := range pages {
		name := strings.TrimSuffix(f.Name(), ".html")
		if path.Ext(f.Name()) != ".html" || name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(shared.Clone()).ParseFS(files, "files/"+f.Name()))
	}
	return all
}

var functions = template.FuncMap{
	"thousands": func(n any) string { return thousands(reflect.ValueOf(n).Int()) },
	"age":       age,
	"at": func(t time.Time) template.HTML { // of digits
		return template.HTML(t.UTC().Format(`<time datetime="2006-01-02T15:04:05Z">2006-01-02 15:04:05 UTC</time>`))
	},
	"known":     known,
	"id":        shortID,
	"detail":    detail,
	"beginning": beginning,
	"short":     func(text string) string { return cut(text, maxError) },
	"raw":       func(m json.RawMessage) string { return beginning(string(m)) },
	"some":      func(all []string) string { return some(all, "") },
	"becoming":  demand.Becoming,
	"list":      func(pairs ...string) []string { return pairs },
}

// known reports whether there is a worker of this ID.
func known(id [16]byte) bool { return id != [16]byte{} }

// shortID is the beginning of an ID.
func shortID(id [16]byte) string { return hex.EncodeToString(id[:4]) }

// thousands writes a number with separators.
func thousands[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// age rounds a duration, so that a reader can compare it.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 2*time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.FormatFloat(d.Hours(), 'f', 1, 64) + " h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// maxShown bounds the bytes of a value on a page of its own, maxError the bytes of a value in a
// list.
const (
	maxShown = 64 << 10
	maxError = 2_000
)

func beginning(s string) string { return cut(s, maxShown) }

// cut is a text of some bytes, or the beginning of a longer one.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}

// entry is a field of an operation's record.
type entry struct{ Name, Value string }

const (
	maxDetail = 1_000 // bytes of a field. All of it is in the JSON of the page
	maxItems  = 20    // of a list
)

// detail lists the fields of an object in their order.
func detail(object json.RawMessage) (all []entry) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return []entry{{"detail", cut(string(object), maxDetail)}}
	}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return all
		}
		all = append(all, entry{strings.ReplaceAll(fmt.Sprint(name), "_", " "), cut(fieldOf(value), maxDetail)})
	}
	return all
}

// fieldOf is a value for people.
func fieldOf(value json.RawMessage) string {
	var text string
	var list []json.RawMessage
	switch {
	case json.Unmarshal(value, &text) == nil:
		return text
	case json.Unmarshal(value, &list) == nil:
		var items []string
		for _, v := range list[:min(len(list), maxItems)] {
			items = append(items, fieldOf(v))
		}
		if len(list) > maxItems {
			items = append(items, "… ("+thousands(len(list))+" in all)")
		}
		return strings.Join(items, ", ")
	}
	return string(value)
}

// page is the data of a template.
type page struct {
	Title, Page string // Page is the view's name
	Where       string // the database and the environment; empty: not known, or not shown
	Live        string // address of the updates; empty: there are none
	Done        string // the change that led to this page
	Grant       Grant
	Data        any
}

// May reports whether the reader may make a change. A unit is its consumer's.
func (p *page) May(on, kind, name string) bool {
	if on == OnConsumer {
		name = partition.Consumer(name)
	}
	return p.Grant.allows(Action{On: on, Kind: ops.Kind(kind), Name: name})
}

// Changeable returns the names to which the sender may make a change of one of the kinds.
func (p *page) Changeable(on string, names []string, kinds ...string) (some []string) {
	for _, name := range names {
		if slices.ContainsFunc(kinds, func(kind string) bool { return p.May(on, kind, name) }) {
			some = append(some, name)
		}
	}
	return some
}

func (p *page) Sees() bool { return p.Grant.Level >= Payloads }

// tab is a link of the navigation.
type tab struct {
	Address, Text string
	Current       string // as aria-current has it; empty: it leads elsewhere
}

// Tabs are the navigation.
func (p *page) Tabs() (all []tab) {
	for _, name := range []string{"", "letters", "workers", "blocked", "gaps", "event", "operations", "queues", "jobs", "jobworkers", "schedules", "flows"} {
		t := tab{Address: cmp.Or(name, "./"), Text: views[name].title}
		if v, ok := views[p.Page]; ok && p.Page == name {
			t.Current = "page"
		} else if ok && v.under == t.Address {
			t.Current = "true"
		}
		all = append(all, t)
	}
	return all
}

// view is a page that is read.
type view struct {
	title, file string
	under       string // the entry of the navigation that the page belongs to; empty: the page has an entry of its own
	read        func(c *Console, ctx context.Context, q query, g Grant) (any, error)
	part        func(s *snapshot, q url.Values) (any, error) // the data of its live updates; nil: it has none
}

// query has the parameters of an address.
type query struct {
	url.Values
	err *error // the first value that is none
}

func (q query) int(name string) int64 {
	text := q.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if (err != nil || n < 0) && *q.err == nil {
		*q.err = &refusal{http.StatusBadRequest, fmt.Sprintf("%s is %.50q: give a number from 0 on.", name, text)}
	}
	return n
}

func (q query) duration(name string) time.Duration {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if (err != nil || d < 0) && *q.err == nil {
		*q.err = &refusal{http.StatusBadRequest, fmt.Sprintf("%s is %.50q: give a time such as 90s, 15m or 24h.", name, text)}
	}
	return d
}

func (c *Console) view(w http.ResponseWriter, r *http.Request, g Grant, name string, v view) {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	var invalid error
	q := query{r.URL.Query(), &invalid}
	data, err := v.read(c, ctx, q, g)
	if invalid != nil {
		err = invalid
	}
	if err != nil {
		c.fail(w, r, g, late(ctx, err))
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

// show answers with a page, or with its data.
func (c *Console) show(w http.ResponseWriter, r *http.Request, status int, file string, p *page) {
	var body bytes.Buffer
	var err error
	if asJSON(r) {
		w.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(&body).Encode(p.Data)
	} else {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		p.Where = c.where(r.Context(), p.Grant)
		err = templates[file].ExecuteTemplate(&body, "layout.html", p)
	}
	if err != nil { // a mistake of ours
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		status, body = http.StatusInternalServerError, *bytes.NewBufferString("the page cannot be drawn: " + err.Error() + "\n")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

func asJSON(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/json")
}

// refusal is an answer that says why there is no page.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// failed is the data of the page of a failure.
type failed struct {
	Status int
	Error  string
	Hint   string `json:",omitempty"`
}

func (c *Console) fail(w http.ResponseWriter, r *http.Request, g Grant, err error) {
	status, hint := judge(err)
	if hint == hintAway {
		w.Header().Set("Retry-After", "5")
	}
	c.show(w, r, status, "failed", &page{Title: http.StatusText(status), Page: "failed", Grant: g, Data: failed{status, err.Error(), hint}})
}

// late says that the database took too long, however the driver reports that.
func late(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

const (
	hintMoved = "Nothing was changed. The state changed since. Go back, read it again, and decide again."
	hintAway  = "The database did not answer in time, or a batch kept what was to be changed. Nothing was changed. Try again: the workers go on by themselves when the database is back."
	hintFull  = "The server takes no further connection. Nothing was changed. End idle sessions, or raise the limit: of the role, the database or the server."
	hintReads = "The server takes no changes: it is a standby, or was made read-only. Nothing was changed. Open a console that is connected to the primary."
	hintRole  = "The database role of the console lacks a right: the documentation of the operations says which ones an operator's role has."
)

const insufficientPrivilege = "42501" // a SQLSTATE

// judge says which answer an error is.
func judge(err error) (status int, hint string) {
	var refused *refusal
	var unknown *ops.UnknownOutcomeError
	var registered *ops.RegisteredError
	var stuck *ops.NotStuckError
	switch {
	case errors.As(err, &refused):
		return refused.status, ""
	case errors.As(err, &unknown):
		return http.StatusServiceUnavailable, "The answer of the database was lost. Read the operations before you repeat it."
	case errors.As(err, &registered), errors.As(err, &stuck):
		return http.StatusConflict, "Nothing was changed."
	case isConflict(err):
		return http.StatusConflict, hintMoved
	case errors.Is(err, ops.ErrInvalid):
		return http.StatusBadRequest, ""
	case errors.Is(err, ops.ErrNotFound):
		return http.StatusNotFound, ""
	case errors.Is(err, migrations.ErrNotApplied):
		return http.StatusNotFound, "Tables of an older version want the migrations first, and those of a newer version a newer console. An application that uses only events, or only jobs, does not have the tables of the other."
	case pgdriver.SQLState(err) == pgdriver.TooManyConnections:
		return http.StatusServiceUnavailable, hintFull
	case isAny(err, context.DeadlineExceeded, context.Canceled), pgdriver.IsConnectionLoss(err), pgdriver.IsPoolClosed(err):
		return http.StatusServiceUnavailable, hintAway
	case pgdriver.SQLState(err) == pgdriver.ReadOnlyTransaction:
		return http.StatusServiceUnavailable, hintReads
	case pgdriver.SQLState(err) == insufficientPrivilege:
		return http.StatusInternalServerError, hintRole
	}
	return http.StatusInternalServerError, ""
}

func isConflict(err error) bool {
	var moved *ops.MovedError
	var next *ops.NotNextError
	var settled *ops.NotSettledError
	var state *ops.StateError
	return errors.As(err, &moved) || errors.As(err, &next) || errors.As(err, &settled) || errors.As(err, &state) ||
		isAny(err, errOther, ops.ErrUnchanged, ops.ErrNoDeadLetter)
}

func isAny(err error, these ...error) bool {
	for _, e := range these {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
