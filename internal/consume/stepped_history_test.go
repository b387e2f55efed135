package consume

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/history"
)

// The events that only scripts record. They contain nothing that depends on chance, so a
// repeated script gives the same history byte for byte. They have no process ids,
// transaction ids or times except the bubble's, and number the server's incarnations.
const (
	drawnScript  history.Kind = "script"    // settings
	actionBegun  history.Kind = "deed"      // deed
	statementRan history.Kind = "statement" // operation
	guardWaits   history.Kind = "waits"     // for another batch of its consumer
	eventHandled history.Kind = "handled"   // handled
	published    history.Kind = "frontier"  // view
	sessionEnded history.Kind = "frontier fails"
	stepFailed   history.Kind = "step fails"
	assigned     history.Kind = "assigned"
	wasReset     history.Kind = "reset"
	recovered    history.Kind = "recovered"
	savepointSet history.Kind = "savepoint"
	undone       history.Kind = "rollback to savepoint"
	drew         history.Kind = "draw"
	nudged       history.Kind = "nudged"
	judged       history.Kind = "verdict" // the violation; empty: none
)

// The faults that only scripts know.
const (
	serverCrash  history.Fault = "server killed and restarted"
	backendKill  history.Fault = "backend killed, and the server with it"
	writerEnded  history.Fault = "backend of a writer ended"
	workerCut    history.Fault = "all connections of a worker ended"
	answerLost   history.Fault = "answer of a commit lost"
	handlerFault history.Fault = "handler will fail"
)

type (
	settings struct {
		Calm      bool   `json:"calm"`
		Async     bool   `json:"async"`
		Pooled    bool   `json:"pooled"`
		Named     bool   `json:"named"`
		Old       bool   `json:"old"`
		Policy    string `json:"policy"`
		Stale     string `json:"stale"`
		HarborLag int    `json:"harbor_lag"`
		BatchSize int    `json:"batch_size"`
		MaxOpen   int    `json:"max_open"`
	}
	deed struct {
		Deed string `json:"deed"`
		Who  int    `json:"who"`
		What int    `json:"what"`
	}
	// operation is a statement and its result: PostgreSQL's command tag, or the error.
	operation struct {
		Statement string `json:"statement"`
		Ahead     bool   `json:"ahead,omitempty"` // reads the next page ahead
		Outcome   string `json:"outcome"`
	}
	// draw is a position that a writer has drawn from the sequence.
	draw struct {
		Aggregate string         `json:"aggregate,omitempty"` // empty: no event will use it
		Positions []history.Span `json:"positions"`
		Appended  bool           `json:"appended,omitempty"`
	}
	handled struct {
		Position int64 `json:"position"`
		Late     bool  `json:"late,omitempty"`
	}
	view struct {
		Life    int            `json:"life"` // the incarnation, numbered by its token; 0: none yet
		Settled int64          `json:"settled"`
		Safe    int64          `json:"safe"`
		Doubts  []history.Span `json:"doubts,omitempty"`
	}
)

// tell records an event, and logs it where rapid shows a failure.
func (s *stage) record(who, consumer string, kind history.Kind, about any) {
	s.history.Add(who, consumer, kind, about)
	s.t.Logf("%s %s: %s %+v", who, consumer, kind, about)
}

// wrong ends the script with a violation.
func (s *stage) wrong(format string, args ...any) {
	s.t.Helper()
	what := fmt.Sprintf(format, args...)
	s.record("", "", judged, []string{what})
	s.t.Fatal(what)
}

// viewOf returns the view that a frontier has published.
func (s *stage) viewOf(v *frontier.Value) view {
	if !slices.Contains(s.lives, v.Token) {
		s.lives = append(s.lives, v.Token)
	}
	seen := view{Life: slices.Index(s.lives, v.Token), Settled: v.Settled, Safe: v.Safe}
	for _, d := range v.Doubts {
		seen.Doubts = append(seen.Doubts, history.Span{First: d.First, Last: d.Last})
	}
	return seen
}

// notes are the events of a stopped thread that are not recorded yet. Two threads may run
// at the same time.
type notes struct {
	mu  sync.Mutex
	all []note
}

type note struct {
	kind  history.Kind
	about any
}

func (n *notes) add(kind history.Kind, about any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, note{kind, about})
}

func (n *notes) take() []note {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// tellNotes records the notes of a loop's thread.
func (s *stage) recordNotes(l *loop, t *thread) {
	for _, n := range t.notes.take() {
		s.record(l.worker, l.unit(), n.kind, n.about)
	}
}

// observer records a worker's events about batches.
func (s *stage) observer(w *steppedWorker) observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.BatchDone:
			ended := history.Batch{Outcome: history.BatchCommitted, Attempt: e.Attempt, Events: e.Events, Late: e.Late,
				From: e.From, To: e.To, First: e.First, Last: e.Last, Error: errorText(e.Err)}
			switch {
			case e.Overtaken:
				ended.Outcome = history.BatchOvertaken
			case e.Err != nil:
				ended.Outcome = history.BatchFailed
			}
			w.loop(e.Consumer).main.notes.add(history.BatchEnded, ended)
		case observe.Skipped:
			w.loop(e.Consumer).main.notes.add(history.GapSkipped,
				history.Gap{Span: history.Span{First: e.First, Last: e.Last}, Missing: e.Missing, State: string(e.State)})
		case observe.FrontierBlocked:
			w.blockers = append(w.blockers, s.holder(e.BlockingTransaction))
		}
	}
}

// holder names a transaction.
func (s *stage) holder(b observe.BlockingTransaction) string {
	if b.GID != "" {
		return b.GID
	}
	for i := range s.writers {
		if s.writers[i].pid == b.PID {
			return s.name(&s.writers[i])
		}
	}
	return b.ApplicationName
}

// errorText returns the text of an error without anything that depends on chance. It depends
// on chance which of several errors a client gets when its server dies.
func errorText(err error) string {
	var setup *frontier.SetupError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errScripted):
		return errScripted.Error()
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &setup):
		return "refused: " + setup.Error()
	case pgdriver.IsConnectionLoss(err), strings.HasSuffix(err.Error(), "conn closed"):
		return "connection lost"
	case pgdriver.SQLState(err) != "":
		return "SQLSTATE " + pgdriver.SQLState(err)
	}
	return err.Error()
}

// statementNames are names of the statements, by a substring.
var statementNames = []struct{ has, name string }{
	{"guard AS (", "guard"},
	{"SELECT last_position, revision", "load"},
	{"SELECT coalesce((SELECT token", "incarnation"},
	{`_token" AS t`, "plant the token"},
	{"SET settled = greatest", "raise settled"},
	{`_settled" AS t`, "place settled"},
	{"SELECT settled FROM", "start"},
	{"string_agg(p::text", "tail"},
	{"FROM pg_locks", "scan"},
	{"SELECT max(", "head"},
	{"SELECT e.global_position", "read"},
	{"WITH page AS", "read scoped"},
	{"WITH tally AS", "count missing"},
	{"SELECT consumer_name, revision", "revisions"},
	{"INSERT INTO ledger", "handle"},
	{"begin", "begin"},
}

// statementName returns a statement's name in a history.
func statementName(sql string) string {
	for _, s := range statementNames {
		if strings.Contains(sql, s.has) {
			return s.name
		}
	}
	words := strings.Fields(sql)
	return strings.ToLower(strings.Join(words[:min(len(words), 3)], " "))
}

var historyFile = flag.String("stepped.history", "", "stepped scripts: write the history of the script that was played last to this `file`")

// failures is the prefix of the directories in which rapid keeps failed scripts. It plays
// them first.
const (
	failures      = "testdata/rapid/TestStepped"
	failedHistory = failures + "/history.jsonl"
)

// keep writes the history to a file.
func (s *stage) keep(path string) {
	var text bytes.Buffer
	err := s.history.WriteJSONLines(&text)
	err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text.Bytes(), 0o644))
	if err != nil {
		s.t.Errorf("the history is lost: %v", err)
	}
}

func sayHowToRepeat(t *testing.T) {
	when := func(script string) string { _, time, _ := strings.Cut(filepath.Base(script), "-"); return time }
	command := "go test -race -run '^TestStepped$' ."
	if scripts, _ := filepath.Glob(failures + "*/*.fail"); len(scripts) > 0 {
		command += " -rapid.failfile=" + slices.MaxFunc(scripts, func(a, b string) int { return strings.Compare(when(a), when(b)) })
	}
	t.Logf("again: %s\nits history: %s", command, failedHistory)
}
