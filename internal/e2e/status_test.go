package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestStatusAsJSON(t *testing.T) {
	t.Parallel()
	lag := int64(2)
	s := worker.Status{
		State: observe.StateRunning, Leader: true, CoordinationError: errors.New("no route to host"), FrontierError: errors.New("cache 10"), Safe: 7,
		Consumers: []observe.ConsumerStatus{{Name: "a", Position: 5, Lag: &lag, LastError: errors.New("zero \x00 byte")}, {Name: "b"}},
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	consumers := got["Consumers"].([]any)
	a, b := consumers[0].(map[string]any), consumers[1].(map[string]any)
	if _, there := b["Lag"]; there {
		t.Errorf("a lag that is not known is in %s", text)
	}
	for what, pair := range map[string][2]any{
		"the state":            {got["State"], "running"},
		"the leader":           {got["Leader"], true},
		"the error":            {got["CoordinationError"], "no route to host"},
		"the frontier's error": {got["FrontierError"], "cache 10"},
		"safe":                 {got["Safe"], 7.0},
		"the name":             {a["Name"], "a"},
		"the position":         {a["Position"], 5.0},
		"the consumer's error": {a["LastError"], `zero \0 byte`},
		"no error":             {b["LastError"], nil},
		"the lag":              {a["Lag"], 2.0},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v, not %v, in %s", what, pair[0], pair[1], text)
		}
	}
}

// The table of workers shows what each says of itself, of its own consumers
// only, and the name that it was given, which others may have too. The query of migrating.md for the
// leader finds one of them.
func TestStatusInTheTableOfWorkers(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	consumers := []consumer.Consumer{&ledger{name: "a"}, &ledger{name: "b"}}
	named := worker.WithHostname("shelf")
	one, two := start(t, d.DB, consumers, named), start(t, d.DB, consumers, named)
	for _, w := range []*running{one, two} {
		await(t, "the row of a worker to show its consumer", func() bool {
			var state, names, error string
			err := d.DB.QueryRow(`
SELECT status->>'State', coalesce((SELECT string_agg((c->>'Name') || ' ' || (c->>'Position'), ',') FROM jsonb_array_elements(status->'Consumers') AS c), ''),
	coalesce(status->>'CoordinationError', '')
FROM worker_nodes WHERE worker_id = $1`, w.ID().String()).Scan(&state, &names, &error)
			return err == nil && state == "running" && (names == "a 3" || names == "b 3") && error == ""
		})
	}
	var shelved, leaders int
	if err := d.DB.QueryRow(`SELECT count(*) FROM worker_nodes WHERE hostname = 'shelf'`).Scan(&shelved); err != nil || shelved != 2 {
		t.Errorf("%d workers have the name that two were given: %v", shelved, err)
	}
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(string(text), "SELECT pid FROM pg_locks")
	query, _, found := strings.Cut(query, ";")
	if err := d.DB.QueryRow(`SELECT count(*) FROM (SELECT pid FROM pg_locks` + query + `) AS leader`).Scan(&leaders); err != nil || !found || leaders != 1 {
		t.Errorf("the documented query finds %d leaders: %v", leaders, err)
	}
}

// What is left of an older build is shown by the leader and left alone, also
// when its last worker has handed it back.
func TestUnownedConsumersAreShown(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	older := start(t, d.DB, []consumer.Consumer{&ledger{name: "retired"}})
	await(t, "the consumer to be placed", func() bool { return checkpoint(t, d.DB, "retired") >= 0 })
	older.Stop()
	if err := older.result(t); err != nil {
		t.Fatal(err)
	}
	told := make(chan observe.ConsumerUnowned, 2)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "current"}},
		worker.WithObserver(observe.On(func(c observe.ConsumerUnowned) { told <- c })))
	await(t, "the status to show the retired consumer", func() bool { return fmt.Sprint(w.Status().Unowned) == "[retired]" })
	if s := w.Status(); !s.Leader || strings.Contains(fmt.Sprint(s.Consumers), "retired") {
		t.Errorf("the status is %+v", s)
	}
	await(t, "the hook", func() bool { return len(told) > 0 })
	if c := <-told; c.Consumer != "retired" || !strings.Contains(c.Reason, "start one that has, or remove") {
		t.Errorf("the hook was told %+v", c)
	}
}
