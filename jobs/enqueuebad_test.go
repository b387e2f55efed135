package jobs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

// odd are arguments of any kind and JSON.
type odd struct {
	kind func() string
	json func() ([]byte, error)
}

func (o odd) Kind() string { return o.kind() }

func (o odd) MarshalJSON() ([]byte, error) { return o.json() }

func ofKind(kind string) odd {
	return odd{func() string { return kind }, func() ([]byte, error) { return []byte(`{}`), nil }}
}

func ofJSON(text string) odd {
	return odd{func() string { return "task" }, func() ([]byte, error) { return []byte(text), nil }}
}

// nested returns arrays nested n deep.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// Each job that cannot be enqueued is refused with ErrInvalid. The transaction of the user stays
// usable.
func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	tx, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	panics := odd{func() string { panic("kind") }, nil}
	option := func(o ...jobs.EnqueueOption) jobs.EnqueueParams { return jobs.EnqueueParams{Args: task{}, Options: o} }
	long, year := strings.Repeat("x", 201), func(y int, zone int) time.Time {
		return time.Date(y, 1, 1, 0, 0, 0, 0, time.FixedZone("z", zone))
	}
	for name, e := range map[string]jobs.EnqueueParams{
		"nil":                          {},
		"nil pointer":                  {Args: (*task)(nil)},
		"Kind panics":                  {Args: panics},
		"Kind is empty":                {Args: ofKind("")},
		"Kind is long":                 {Args: ofKind(long)},
		"Kind has NUL":                 {Args: ofKind("a\x00b")},
		"Kind is no UTF-8":             {Args: ofKind("a\xffb")},
		"MarshalJSON panics":           {Args: odd{ofKind("task").kind, func() ([]byte, error) { panic("json") }}},
		"MarshalJSON fails":            {Args: odd{ofKind("task").kind, func() ([]byte, error) { return nil, errors.New("no") }}},
		"no JSON":                      {Args: ofJSON(`{`)},
		"10 MB":                        {Args: ofJSON(`"` + strings.Repeat("x", 10<<20) + `"`)},
		"NUL":                          {Args: ofJSON(`"\u0000"`)},
		"no UTF-8":                     {Args: ofJSON("\"\xff\"")},
		"half of a surrogate pair":     {Args: ofJSON(`"\ud800"`)},
		"the other half":               {Args: ofJSON(`"\\\udc00"`)},
		"halves apart":                 {Args: ofJSON(`"\ud800x\udc00"`)},
		"a number that is too large":   {Args: ofJSON(`1e999999`)},
		"a number that is too precise": {Args: ofJSON(`[1.5E-99999]`)},
		"deeply nested":                {Args: ofJSON(nested(9_999))},
		"Meta a channel":               option(jobs.Meta(make(chan int))),
		"Meta has NUL":                 option(jobs.Meta("\x00")),
		"Priority 0":                   option(jobs.Priority(0)),
		"Priority 10":                  option(jobs.Priority(10)),
		"Queue is empty":               option(jobs.Queue("")),
		"Queue is all":                 option(jobs.Queue("*")),
		"Queue is long":                option(jobs.Queue(long)),
		"Queue has NUL":                option(jobs.Queue("\x00")),
		"In is negative":               option(jobs.In(-1)),
		"In is far":                    option(jobs.In(math.MaxInt64)),
		"At and In":                    option(jobs.At(time.Now()), jobs.In(1)),
		"At is in year 0":              option(jobs.At(year(0, 0))),
		"At is in year 0 of UTC":       option(jobs.At(year(1, 14*3600))),
		"At is in year 10000":          option(jobs.At(year(10_000, 0))),
		"GoodUntil is in year -1":      option(jobs.GoodUntil(year(-1, 0))),
		"GoodUntil is zero":            option(jobs.GoodUntil(time.Time{})),
		"MaxAttempts 0":                option(jobs.MaxAttempts(0)),
		"MaxAttempts without end":      option(jobs.MaxAttempts(math.MaxInt)),
		"MaxResets -1":                 option(jobs.MaxResets(-1)),
		"MaxResets without end":        option(jobs.MaxResets(math.MaxInt)),
		"Unique is empty":              option(jobs.Unique("")),
		"Unique is long":               option(jobs.Unique(strings.Repeat("x", 1001))),
		"Unique has NUL":               option(jobs.UniqueUntilStart("\x00")),
		"two keys":                     option(jobs.Unique("a"), jobs.UniqueUntilStart("a")),
		"Unique and Once":              option(jobs.Unique("a"), jobs.Once("a", 0)),
		"Once is empty":                option(jobs.Once("", 0)),
		"Once keeps less than nothing": option(jobs.Once("k", -1)),
	} {
		if _, err := s.EnqueueMany(t.Context(), tx, []jobs.EnqueueParams{{Args: task{}}, e}); !errors.Is(err, jobs.ErrInvalid) {
			t.Errorf("%s: %.300v", name, err)
		} else if len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\x00\n") {
			t.Errorf("%s: the error is %d bytes long: %.300q", name, len(err.Error()), err)
		}
		if _, err := tx.Exec(`SELECT 1`); err != nil {
			t.Fatalf("%s: the transaction was aborted: %v", name, err)
		}
	}
	if _, err := s.EnqueueMany(t.Context(), tx, []jobs.EnqueueParams{{Args: task{}}}); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}

// Unusual but valid values are enqueued unchanged.
func TestEnqueueAcceptsUnusualInput(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	day := func(y, zone int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.FixedZone("z", zone)) }
	for name, e := range map[string]jobs.EnqueueParams{
		"null":                {Args: ofJSON(`null`)},
		"escapes":             {Args: ofJSON(`{"a": "\\u0000 \\\\ud800 \ud83d\ude00 \u00e4"}`)},
		"large numbers":       {Args: ofJSON(`{"a": 1e1000, "b": 0.000000000000000001, "c": -1E+2}`)},
		"nested":              {Args: ofJSON(`{"a": ` + nested(500) + `}`)},
		"no UTF-8":            {Args: task{}, Options: []jobs.EnqueueOption{jobs.Meta("a\xffb")}},
		"At in year 1":        {Args: task{}, Options: []jobs.EnqueueOption{jobs.At(day(1, 0))}},
		"At the zero time":    {Args: task{}, Options: []jobs.EnqueueOption{jobs.At(time.Time{})}},
		"At in an odd zone":   {Args: task{}, Options: []jobs.EnqueueOption{jobs.At(day(2000, 25*3600+61))}},
		"nil options":         {Args: task{}, Options: []jobs.EnqueueOption{nil, jobs.Meta(nil)}},
		"names with quotes":   {Args: task{}, Options: []jobs.EnqueueOption{jobs.Unique(`'"\`), jobs.Queue("default")}},
		"the longest of keys": {Args: task{}, Options: []jobs.EnqueueOption{jobs.Once(strings.Repeat("x", 1000), math.MaxInt64)}},
	} {
		all, err := s.EnqueueMany(t.Context(), nil, []jobs.EnqueueParams{e})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		defer func() {
			if i := s.ended(all[0].ID); i.State != jobs.StateCompleted && i.Code != jobs.CodeArgs {
				t.Errorf("%s: the job is %s: %s", name, i.State, i.Error)
			}
		}()
	}
	far := s.add(task{}, jobs.At(day(9999, 0)))
	w := s.run()
	if all, err := s.EnqueueMany(t.Context(), nil, nil); err != nil || len(all) != 0 {
		t.Errorf("nothing was enqueued: %v, %v", all, err)
	}
	twice, err := s.EnqueueMany(t.Context(), nil, []jobs.EnqueueParams{{task{}, []jobs.EnqueueOption{jobs.Unique("k")}}, {task{}, []jobs.EnqueueOption{jobs.Unique("k")}}})
	if err != nil || twice[0].Existing || !twice[1].Existing || twice[0].ID != twice[1].ID {
		t.Errorf("one key twice: %+v, %v", twice, err)
	}
	s.ended(twice[0].ID)
	if i, err := s.Get(t.Context(), far); err != nil || i.State != jobs.StateAvailable || !i.RunAt.Equal(day(9999, 0)) {
		t.Errorf("the job of the year 9999 is %+v, %v", i, err)
	}
	s.until("an idle worker", func() bool { q := w.Status().Queues[0]; return q.Running == 0 && q.LastError == nil })
}

// Each call of a client with invalid options, or without a database, returns an error.
func TestClientRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, c := range map[string]*jobs.Client{
		"nil db": jobs.NewClient(nil), "table": jobs.NewClient(s.d.DB, jobs.WithNames(store.Names{Jobs: "a.b.c.d"}), nil),
		"notify": jobs.NewClient(s.d.DB, jobs.WithNotifyConnectionString("postgres://u:secret@h:port/")),
	} {
		_, enqueue := c.Enqueue(t.Context(), nil, task{})
		_, many := c.EnqueueMany(t.Context(), nil, nil)
		_, emit := c.EnqueueFor(t.Context(), nil, store.PersistedEvent{}, task{})
		_, cancel := c.Cancel(t.Context(), nil, 1)
		_, get := c.Get(t.Context(), 1)
		_, wait := jobs.Wait[int](t.Context(), c, 1)
		_, counts := c.Counts(t.Context())
		_, logs := c.Logs(t.Context(), 1)
		for n, err := range []error{enqueue, many, emit, cancel, get, wait, counts, logs} {
			if err == nil || !errors.Is(err, counts) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: call %d: %v", name, n, err)
			}
		}
	}
	var tx *sql.Tx
	var conn *sql.Conn
	for _, on := range []jobs.Querier{tx, conn} {
		if _, err := s.Enqueue(t.Context(), on, task{}); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("with a nil %T: %v", on, err)
		}
		if _, err := s.Cancel(t.Context(), on, 1); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("with a nil %T: %v", on, err)
		}
	}
	own, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Exec(`SELECT 1/0`); err == nil {
		t.Fatal("no error")
	}
	if _, err := s.Enqueue(t.Context(), own, task{}); err == nil {
		t.Error("enqueued in a transaction that was aborted")
	}
	if err := own.Rollback(); err != nil {
		t.Fatal(err)
	}
	if counts, err := s.Counts(t.Context()); err != nil || len(counts) > 0 {
		t.Errorf("there are jobs: %+v, %v", counts, err)
	}
}

var _ json.Marshaler = odd{}
