package observe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

var events = []observe.Event{
	observe.WorkerStarted{}, observe.WorkerStopped{}, observe.ShutdownTimedOut{}, observe.WorkerReregistered{}, observe.StaleWorkersRemoved{},
	observe.LeadershipChanged{}, observe.Rebalanced{}, observe.CoordinationFailed{}, observe.NotifyFailed{}, observe.Recovered{}, observe.Woken{},
	observe.RolesHidden{}, observe.PoolTooSmall{}, observe.PoolSwept{}, observe.TaskFailed{}, observe.HookPanicked{},
	observe.ConsumerStarted{}, observe.ConsumerStopped{}, observe.ConsumerUnowned{}, observe.ConsumerFailed{}, observe.ConsumerPaused{},
	observe.ConsumerWaiting{}, observe.Retrying{}, observe.DeadLettered{}, observe.DeadLetterFailed{}, observe.Rescaled{}, observe.ScopeChanged{},
	observe.DeadBatchEnded{}, observe.TransactionEnded{}, observe.Skipped{}, observe.Verified{},
	observe.BatchStarted{}, observe.BatchDone{}, observe.HandlerOverdue{}, observe.FrontierBlocked{}, observe.FrontierFailed{},
	observe.JobsClaimed{}, observe.JobDone{}, observe.JobLost{}, observe.JobOverdue{}, observe.JobReturned{}, observe.JobsReset{}, observe.RowReset{},
	observe.RowsHidden{}, observe.JobsExpired{}, observe.FlowRunEnded{}, observe.StatementFailed{},
	observe.UnknownKinds{}, observe.Ticked{}, observe.TickFailed{}, observe.ScheduleForeign{},
}

func nameOf(e observe.Event) string { return reflect.TypeOf(e).Name() }

// The tests cover each event of the package.
func TestAllEventsAreCovered(t *testing.T) {
	missing := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if fn, is := d.(*ast.FuncDecl); is && fn.Recv != nil && fn.Name.Name == "line" {
				missing[fn.Recv.List[0].Type.(*ast.Ident).Name] = true
			}
		}
	}
	for _, e := range events {
		delete(missing, nameOf(e))
	}
	if len(missing) > 0 {
		t.Errorf("events lacks %v", missing)
	}
}

// Each event is one line of a text log, with distinct keys.
func TestLogIsOneLine(t *testing.T) {
	var out bytes.Buffer
	log := observe.Log(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, e := range events {
		out.Reset()
		log(e)
		if lines := strings.Count(out.String(), "\n"); lines != 1 {
			t.Errorf("%s logs %d lines: %s", nameOf(e), lines, &out)
		}
		var line map[string]any
		out.Reset()
		observe.Log(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))(e)
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] == "" {
			t.Errorf("%s logs %s: %v", nameOf(e), &out, err)
		}
		for key := range line {
			if n := strings.Count(out.String(), fmt.Sprintf("%q:", key)); n != 1 {
				t.Errorf("%s has the key %s %d times", nameOf(e), key, n)
			}
		}
	}
}

// The messages and keys of a log line stay the same from version to version. testdata/lines.txt has
// them as they were; a line may be added.
func TestLinesStayTheSame(t *testing.T) {
	want, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, e := range filled(t) {
		var out bytes.Buffer
		observe.Log(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))(e)
		line := map[string]any{}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		message := line["msg"]
		for _, every := range []string{"msg", "level", "time"} {
			delete(line, every)
		}
		fmt.Fprintf(&got, "%s: %s: %s\n", nameOf(e), message, strings.Join(slices.Sorted(maps.Keys(line)), " "))
	}
	if got.String() != string(want) {
		t.Errorf("the lines are\n%s\nwant\n%s", &got, want)
	}
}

// filled are the events with an error in each field for one, since a line leaves out nil.
func filled(t *testing.T) (all []observe.Event) {
	t.Helper()
	for _, e := range events {
		v := reflect.New(reflect.TypeOf(e)).Elem()
		fill(v)
		all = append(all, v.Interface().(observe.Event))
	}
	return all
}

func fill(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[error]():
			f.Set(reflect.ValueOf(errors.New("boom")))
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[time.Time]():
			fill(f)
		case f.Kind() == reflect.String && f.Type().Name() == "string":
			f.SetString("x")
		}
	}
}

func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := observe.Log(slog.New(slog.NewTextHandler(&out, nil)))
	says := func(e observe.Event, want ...string) {
		t.Helper()
		out.Reset()
		log(e)
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s is logged as %s, want %q", nameOf(e), &out, w)
			}
		}
	}
	id := uuid.New()
	says(observe.WorkerStopped{Worker: observe.Worker{Kind: observe.KindJobs, ID: id}, Err: errors.New("boom\nat noon")}, "level=ERROR", "worker=jobs", id.String(), `error="boom; at noon"`)
	says(observe.WorkerStopped{Drained: true}, "level=INFO", "drained")
	says(observe.LeadershipChanged{Leader: true}, "gained leadership")
	says(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: "q"}, "cannot claim jobs, retrying", "queue=q")
	says(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: "q", Row: 7}, "the database refuses to change a job", "queue=q", "job=7")
	says(observe.StatementFailed{Condition: observe.ConditionSettle}, "cannot store outcomes of jobs, retrying")
	says(observe.StatementFailed{Condition: observe.ConditionClaim, Row: 7}, "the table refuses to change a row", "job=7")
	says(observe.StatementFailed{Condition: observe.ConditionSettle, Table: "app.work"}, "statement failed, retrying", "table=app.work")
	says(observe.JobDone{State: "failed", Failed: true, Err: errors.New("boom")}, "level=ERROR", "job failed", "boom")
	says(observe.JobDone{State: "available", Failed: true, Err: errors.New("boom")}, "level=WARN", "tried again")
	says(observe.JobDone{State: "available"}, "level=INFO", "did not complete")
	says(observe.BatchDone{Batch: observe.Batch{Err: fmt.Errorf("wrapped: %w", &observe.PanicError{Value: "boom", Stack: []byte("a\n\tb")})}})
	if out.Len() > 0 {
		t.Errorf("a level that is switched off is logged: %s", &out)
	}
	says(observe.ConsumerFailed{Err: fmt.Errorf("wrapped: %w", &observe.PanicError{Value: "boom", Stack: []byte("a\n\tb")})}, "stack=\"[a b]\"", "boom")
	long := strings.Repeat("x", 1<<20)
	says(observe.DeadLettered{DeadLetter: observe.DeadLetter{AggregateType: long, AggregateID: long, EventType: long}}, "1048576 bytes")
	if out.Len() > 2_000 {
		t.Errorf("three texts of a megabyte become %d bytes", out.Len())
	}
	says(observe.Verified{Consumer: "c", AggregateID: "a", Missing: 1}, "level=WARN", "rows of an aggregate differ", "aggregate_id=a", "missing=1")
	says(observe.Verified{Err: errors.New("boom")}, "level=WARN", "the handler fails", "boom")
	if l := observe.Level(observe.Verified{Events: 3}); l != slog.LevelDebug {
		t.Errorf("right rows have level %v", l)
	}
	if !reflect.DeepEqual(observe.Level(observe.Skipped{State: observe.SkipVoid, Range: store.Range{First: 1}}), slog.LevelDebug) {
		t.Error("a rolled-back append is no news")
	}
}

type logger struct{ lines []string }

func (l *logger) Debug(_ context.Context, m string, kv ...any) { l.add("debug", m, kv) }
func (l *logger) Info(_ context.Context, m string, kv ...any)  { l.add("info", m, kv) }
func (l *logger) Error(_ context.Context, m string, kv ...any) { l.add("error", m, kv) }
func (l *logger) add(level, message string, kv []any) {
	l.lines = append(l.lines, fmt.Sprint(level, " ", message, " ", kv))
}

func TestLogTo(t *testing.T) {
	var l logger
	log := observe.LogTo(&l)
	log(observe.ConsumerStopped{Consumer: "a"})
	log(observe.RolesHidden{Roles: "b"})
	log(observe.Woken{Source: observe.WakeupEvents})
	if len(l.lines) != 3 || l.lines[0] != "info consumer stopped [consumer a]" || !strings.HasPrefix(l.lines[1], "error cannot see") || l.lines[2] != "debug woken [source events]" {
		t.Errorf("logged %q", l.lines)
	}
	observe.LogTo(nil)(observe.ConsumerStopped{})
}

func TestOn(t *testing.T) {
	var got []observe.ConsumerStopped
	o := observe.On(func(e observe.ConsumerStopped) { got = append(got, e) })
	for _, e := range events {
		o(e)
	}
	if len(got) != 1 {
		t.Errorf("%d events, want 1", len(got))
	}
}
