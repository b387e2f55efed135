package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// anything draws evidence that makes no sense.
func anything(t *rapid.T) *history.Evidence {
	e := &history.Evidence{
		Consumers: list[history.Scope](t), Strict: rapid.Bool().Draw(t, "strict"), History: history.Of(records()),
		Forgetful: rapid.Bool().Draw(t, "forgetful"), Unsure: list[[]history.Event](t),
		Committed: list[history.Event](t), Abandoned: list[history.Event](t), Misled: list[string](t), Refused: rapid.IntRange(0, 9).Draw(t, "refused"),
		Log: list[history.Event](t), Ledger: list[history.Entry](t), Skips: list[history.Skip](t),
		Operations: list[history.Operation](t), Forgotten: list[history.Skip](t), Rewatched: list[history.Skip](t),
		Unauthorized: list[history.UnauthorizedBatch](t), Assignments: list[history.Assignment](t),
		Sightings: list[history.Sighting](t), Samples: list[[]history.Standing](t), Exits: list[history.Exit](t),
		Rest: rapid.Make[history.Rest]().Draw(t, "rest"),
	}
	// But for the epochs: of a consumer that was reset once.
	e.Operations = append(e.Operations, history.Operation{Consumer: "all", Kind: history.OperationReset})
	once := func(consumer *string, epoch *int64) {
		*consumer, *epoch = "all", rapid.Int64Range(0, 1).Draw(t, "epoch")
	}
	for i := range e.Operations {
		once(&e.Operations[i].Consumer, &e.Operations[i].Epoch)
	}
	for i := range e.Ledger {
		once(&e.Ledger[i].Consumer, &e.Ledger[i].Epoch)
	}
	for _, rows := range [][]history.Skip{e.Skips, e.Forgotten} {
		for i := range rows {
			once(&rows[i].Consumer, &rows[i].Epoch)
		}
	}
	all := slices.Clone(e.Samples)
	for _, s := range e.Sightings {
		all = append(all, s.Standings)
	}
	for _, standings := range all {
		for i := range standings {
			once(&standings[i].Consumer, &standings[i].Epoch)
		}
	}
	return e
}

func list[T any](t *rapid.T) []T {
	return rapid.SliceOfN(rapid.Make[T](), 0, 4).Draw(t, reflect.TypeFor[T]().String())
}

// records are one of each kind.
func records() (all []history.Record) {
	for i, x := range []struct {
		kind  history.Kind
		about any
	}{
		{history.RunBegan, history.Header{Seed: 1<<64 - 1, Consumers: []string{"all"}}},
		{history.Begin, history.Transaction{Tx: 1}},
		{history.Committed, history.Transaction{Tx: 1, Positions: []history.Span{{First: 1, Last: 2}}, Unanswered: true}},
		{history.RolledBack, history.Transaction{Tx: 1, Abandoned: []history.Span{{First: 1, Last: 2}}, Error: "\"<no>\"\n"}},
		{history.PreparedToEnd, history.Transaction{Fault: "transactions prepared"}},
		{history.WorkerBegan, history.Life{ID: "a"}},
		{history.WorkerEnded, history.Life{Error: "b"}},
		{history.Leads, nil}, {history.LeadsNoMore, nil}, {history.Owns, nil}, {history.OwnsNoMore, nil},
		{history.BatchEnded, history.Batch{Outcome: history.BatchCommitted, To: 1 << 60, ReadMS: 0.001}},
		{history.RetryAnnounced, history.Retry{InARow: 2, ByHandler: true}},
		{history.GapSkipped, history.Gap{Span: history.Span{First: 3, Last: 4}, Missing: 2, State: "void"}},
		{history.ConsumerPaused, history.Life{Error: "c"}},
		{history.FrontierBlocked, history.Blocker{Holder: "3/4", Prepared: true}},
		{history.FaultInjected, history.Injection{Fault: history.Cuts, Where: history.InBatch}},
		{history.FaultOver, history.Injection{Fault: history.Stalls}},
		{history.FaultsOver, nil},
		{history.Sampled, history.Sample{Head: 9, Checkpoints: map[string]int64{"all": 7}}},
	} {
		all = append(all, history.Record{N: i + 1, At: float64(i) / 3, Who: "worker 1.1", Consumer: "all", Kind: x.kind, About: x.about})
	}
	return all
}

func TestWhatIsLoadedIsWhatWasSaved(t *testing.T) {
	place := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir := filepath.Join(place, uuid.NewString())
		r := &oracle.Report{Seed: 7, Repeat: "go run ./cmd/sim -seed 7", Began: time.Unix(9, 9).UTC(), Evidence: anything(t)}
		if err := Save(dir, r); err != nil {
			t.Fatal(err)
		}
		back, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		a, b := *r.Evidence, *back.Evidence
		a.History, b.History = nil, nil
		if a, b := written(a), written(b); a != b {
			t.Fatalf("the evidence is another:\n%s\n%s", a, b)
		}
		if !reflect.DeepEqual(back.Evidence.History.Records(), records()) {
			t.Fatalf("the history is another:\n%+v\n%+v", back.Evidence.History.Records(), records())
		}
		if err := Save(dir+" again", back); err != nil {
			t.Fatal(err)
		}
		for _, file := range append([]string{reportFile}, files()...) {
			if a, b := read(t, dir, file), read(t, dir+" again", file); a != b {
				t.Fatalf("%s is another:\n%s\n%s", file, a, b)
			}
		}
	})
}

// written shows all there is; no list is an empty one.
func written(e history.Evidence) string {
	return strings.ReplaceAll(fmt.Sprintf("%#v", e), "(nil)", "{}")
}

func files() (names []string) {
	for _, p := range parts {
		names = append(names, p.file)
	}
	return names
}

func read(t rapid.TB, dir, file string) string {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryFieldIsKept sees to it that no part of the evidence is forgotten.
func TestEveryFieldIsKept(t *testing.T) {
	r := small()
	fields := reflect.ValueOf(r.Evidence).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 3, 3))
		}
	}
	dir := filepath.Join(t.TempDir(), "run")
	if err := Save(dir, r); err != nil {
		t.Fatal(err)
	}
	back, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	fields = reflect.ValueOf(back.Evidence).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Slice && f.Len() != 3 {
			t.Errorf("%s came back with %d of 3 elements", fields.Type().Field(i).Name, f.Len())
		}
	}
}

// small is a run of two events; the consumer applied both.
func small() *oracle.Report {
	first := history.Event{Position: 1, Type: "order", ID: "1", Version: 1, EventID: uuid.New()}
	second := history.Event{Position: 2, Type: "order", ID: "1", Version: 2, EventID: uuid.New()}
	e := &history.Evidence{
		Consumers: []history.Scope{{Name: "all"}}, History: history.Of(records()),
		Committed: []history.Event{first, second}, Log: []history.Event{first, second},
		Ledger: []history.Entry{{Event: first, Consumer: "all", Worker: "a", Batch: "1"}, {Event: second, Consumer: "all", Worker: "a", Batch: "1"}},
	}
	r := &oracle.Report{Seed: 7}
	r.Judge(e)
	return r
}

func TestSpoiledFileIsNamed(t *testing.T) {
	cut := func(s string) string { return s[:len(s)-9] }
	lastLine := func(s string) string { return s[:strings.LastIndexByte(s[:len(s)-1], '\n')+1] }
	for _, c := range []struct {
		name, file string
		spoil      func(string) string // nil: removed
		says       string
	}{
		{"cut off in a line", "ledger.jsonl", cut, "ledger.jsonl:2: the line has no end"},
		{"cut off between lines", "ledger.jsonl", lastLine, "ledger.jsonl:1: the file ends here, after 1 of 2 lines"},
		{"empty", "log.jsonl", func(string) string { return "" }, "log.jsonl:0: the file ends here, after 0 of 2 lines"},
		{"a line too many", "log.jsonl", func(s string) string { return s + "{}\n" }, "log.jsonl:3: the file ends here, after 3 of 2 lines"},
		{"garbage", "committed.jsonl", func(s string) string { return strings.Replace(s, "{", "\x00", 1) }, "committed.jsonl:1: invalid character"},
		{"a word for a number", "ledger.jsonl", func(s string) string { return strings.Replace(s, `"position":2`, `"position":"two"`, 1) }, "ledger.jsonl:2: json: cannot unmarshal string"},
		{"an unknown record", "history.jsonl", func(s string) string { return strings.Replace(s, `"kind":"leads"`, `"kind":"is led"`, 1) }, `history.jsonl:8: there is no kind of record "is led"`},
		{"a record of another kind", "history.jsonl", func(s string) string { return strings.Replace(s, `"kind":"leads"`, `"kind":"batch"`, 1) }, "history.jsonl:8:"},
		{"an epoch that never was", "ledger.jsonl", func(s string) string { return strings.Replace(s, `"batch":"1"`, `"batch":"1","epoch":-2`, 1) }, "ledger.jsonl:1: epoch -2 of all, which was reset 0 times"},
		{"a file gone", "audit.jsonl", nil, "audit.jsonl: no such file"},
		{"no report", "report.json", nil, "not the directory of a run that was kept"},
		{"half a report", "report.json", func(s string) string { return s[:len(s)/2] }, "report.json:"},
		{"a report of nothing", "report.json", func(string) string { return "{}" }, "report, evidence or lines are missing"},
		{"a wrong report", "report.json", func(s string) string { return strings.Replace(s, `"seed": 7`, `"seed": -7`, 1) }, "report.json:3: json: cannot unmarshal number -7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			if err := Save(dir, small()); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, c.file)
			whole, err := os.ReadFile(file)
			if err == nil && c.spoil != nil {
				err = os.WriteFile(file, []byte(c.spoil(string(whole))), 0o600)
			} else if err == nil {
				err = os.Remove(file)
			}
			if err != nil {
				t.Fatal(err)
			}
			if r, err := Load(dir); err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, %v; want an error about %s that says %q", r, err, dir, c.says)
			}
		})
	}
}

func TestSaveOverwritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some", "where")
	if err := Save(dir, small(), Log{"server.log", strings.NewReader("first\n")}); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, small(), Log{"server.log", strings.NewReader("second\n")}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("saved again: %v, want fs.ErrExist", err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "server.log")); string(log) != "first\n" {
		t.Errorf("the log is %q, %v", log, err)
	}
}

func TestReadmeNamesEveryFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r := small()
	r.Reduce = "go run ./cmd/sim -seed 7 -reduce 5m"
	if err := Save(dir, r, Log{"server.log", strings.NewReader("")}); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.txt"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{r.Verdict, r.Reduce, "-check " + dir}
	for _, f := range files {
		names = append(names, f.Name())
	}
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return name == "README.txt" }) {
		if !strings.Contains(string(readme), name) {
			t.Errorf("the README lacks %q:\n%s", name, readme)
		}
	}
}
