package console

import (
	"bytes"
	"embed"
	"encoding/json"
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

	"github.com/pgfrontier/worker/internal/demand"
	"github.com/pgfrontier/worker/internal/partition"
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
	"at": func(t time.Time) template.HTML { // needs no escaping
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

func (c *Console) fail(w http.ResponseWriter, r *http.Request, g Grant, err error) {
	status, hint := judge(err)
	if hint == hintAway {
		w.Header().Set("Retry-After", "5")
	}
	c.show(w, r, status, "failed", &page{Title: http.StatusText(status), Page: "failed", Grant: g, Data: failed{status, err.Error(), hint}})
}
