package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/migrations"
	"pgregory.net/rapid"
)

// The rule for long names must not change, since databases contain names made by it.
func TestLongNamesAreCutDeterministically(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		"l":                     "l_pkey",
		strings.Repeat("t", 58): strings.Repeat("t", 58) + "_pkey",
		strings.Repeat("t", 59): strings.Repeat("t", 49) + "_764fad9c_pkey",
	} {
		text, err := migrations.SQL(&migrations.Config{LeaderElectionTable: table})
		if err != nil || !strings.Contains(text, `CONSTRAINT "`+want+`" PRIMARY KEY (name)`) {
			t.Errorf("%v; the key of %q is not %q in\n%s", err, table, want, text)
		}
	}
}

// drawConfig draws names that are often long, differ only at their end, or resemble names
// derived from each other.
func drawConfig(t *rapid.T) migrations.Config {
	schema := rapid.SampledFrom([]string{"", "", "", "infra.", "public.", "Other."})
	stem := rapid.SampledFrom([]string{"a", "Worker", "select", strings.Repeat("long", 13), strings.Repeat("l", 60)})
	tail := rapid.OneOf(rapid.StringMatching(`[a-z]{3}`), rapid.StringMatching(`[a-z]{3}`), rapid.StringMatching(`[a-z]{3}`),
		rapid.SampledFrom([]string{"", "_token", "_schema", "_pkey", "_id_seq", "_heartbeat_at_idx"}))
	name := rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
			return ""
		}
		return schema.Draw(t, "schema") + stem.Draw(t, "stem") + tail.Draw(t, "tail")
	})
	return migrations.Config{
		WorkerNodesTable:         name.Draw(t, "nodes"),
		ConsumerAssignmentsTable: name.Draw(t, "assignments"),
		ConsumerCheckpointsTable: name.Draw(t, "checkpoints"),
		ConsumerGapSkipsTable:    name.Draw(t, "gapSkips"),
		LeaderElectionTable:      name.Draw(t, "leader"),
		EventsTable:              name.Draw(t, "events"),
		AggregateHeadsTable:      name.Draw(t, "heads"),
	}
}

// created returns the names that the text creates, with their schemas.
func created(text string) []string {
	var all []string
	schema := ""
	for line := range strings.Lines(text) {
		if _, name, ok := strings.Cut(line, "TABLE IF NOT EXISTS "); ok {
			name = strings.Fields(name)[0]
			schema = name[:strings.LastIndex(name, ".")+1]
			all = append(all, name)
		} else if _, rest, ok := strings.Cut(line, "INDEX IF NOT EXISTS "); ok {
			name, table, _ := strings.Cut(rest, " ON ")
			if strings.HasSuffix(name, `pkey"`) {
				continue // in case the constraint was dropped
			}
			table = strings.Fields(table)[0]
			all = append(all, table[:strings.LastIndex(table, ".")+1]+name)
		} else if _, name, ok := strings.Cut(line, "    CONSTRAINT "); ok {
			all = append(all, schema+strings.Fields(name)[0])
		}
	}
	return all
}

func TestNamesNeverCollide(t *testing.T) {
	t.Parallel()
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		for _, c := range rapid.SliceOfN(rapid.Custom(drawConfig), 20, 20).Draw(t, "configurations") {
			worker, err := migrations.SQL(&c)
			if err != nil {
				continue
			}
			store, err := migrations.StoreSQL(&c)
			if err != nil {
				t.Fatalf("SQL takes what StoreSQL refuses: %v", err)
			}
			accepted++
			checkNames(t, worker+store)
		}
	})
	if accepted < 300 {
		t.Fatalf("only %d of the configurations drawn were accepted: the test shows little", accepted)
	}
}

func checkNames(t *rapid.T, text string) {
	names := created(text)
	// There are fifteen tables, and constraints are among the indexes. A new table of the
	// lease needs no index beside its key.
	if want := 15 + len(indexes) + 1; len(names) != want {
		t.Fatalf("found %d names, not %d: %q", len(names), want, names)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			t.Fatalf("%s is created twice in\n%s", name, text)
		}
		seen[name] = true
	}
	for i, s := range strings.Split(text, `"`) {
		if quoted := i%2 == 1; quoted && len(s) > 63 {
			t.Fatalf("%q has %d bytes", s, len(s))
		}
	}
}

// Every accepted set of names yields a text that the server executes.
func TestAcceptedNamesRun(t *testing.T) {
	tier.Checks(t, 40, 100)
	d := pgtest.Empty(t)
	accepted := 0
	rapid.Check(t, func(rt *rapid.T) {
		c := drawConfig(rt)
		worker, err := migrations.SQL(&c)
		if err != nil {
			return
		}
		accepted++
		store, err := migrations.StoreSQL(&c)
		if err != nil {
			rt.Fatal(err)
		}
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			rt.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(t.Context(), store+worker); err != nil {
			rt.Fatalf("%v in\n%s%s", err, store, worker)
		}
		if err := migrations.Check(t.Context(), tx, &c); err != nil {
			rt.Fatal(err)
		}
		var found int
		const query = `SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relkind = 'r' AND c.oid >= 16384`
		if err := tx.QueryRowContext(t.Context(), query).Scan(&found); err != nil || found != len(indexes) {
			rt.Fatalf("%d indexes, %v; want %d", found, err, len(indexes))
		}
	})
	if accepted < 10 {
		t.Fatalf("only %d of the configurations drawn were accepted: the test shows little", accepted)
	}
}

func TestCollidingNamesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config migrations.Config
		says   []string
	}{
		{migrations.Config{WorkerNodesTable: "x", ConsumerGapSkipsTable: "x"}, []string{"Names.WorkerNodes and Names.ConsumerGapSkips", `"x"`}},
		{migrations.Config{WorkerNodesTable: "x", ConsumerGapSkipsTable: "X"}, []string{`"x"`}},
		{migrations.Config{WorkerNodesTable: "consumer_checkpoints"}, []string{`"consumer_checkpoints"`}},
		{migrations.Config{WorkerNodesTable: "consumer_checkpoints_token"}, []string{"Names.ConsumerCheckpoints with _token"}},
		{migrations.Config{EventsTable: "consumer_checkpoints_schema"}, []string{"Names.ConsumerCheckpoints with _schema"}},
		{migrations.Config{EventsTable: "infra.worker_nodes"}, []string{`table "infra.worker_nodes"`, `table "worker_nodes"`, "schema"}},
		{migrations.Config{EventsTable: "worker_nodes_pkey"}, []string{`primary key of "worker_nodes"`}},
		{migrations.Config{EventsTable: "worker_nodes_heartbeat_at_idx"}, []string{`index of "worker_nodes"`}},
		{migrations.Config{AggregateHeadsTable: "events_event_id_key"}, []string{`unique constraint of "events"`}},
		{migrations.Config{AggregateHeadsTable: "events_global_position_seq"}, []string{`sequence of "events"`}},
	} {
		_, err := migrations.SQL(&c.config)
		if err == nil {
			t.Errorf("%+v was accepted", c.config)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %q does not say %q", c.config, err, want)
			}
		}
	}
	long := strings.Repeat("x", 62)
	for what, c := range map[string]migrations.Config{
		"equal names in different schemas":            {WorkerNodesTable: "a.x", ConsumerGapSkipsTable: "b.x"},
		"long names that differ in their last letter": {WorkerNodesTable: long + "a", ConsumerGapSkipsTable: long + "b"},
	} {
		if _, err := migrations.SQL(&c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestInvalidNamesAreRefused(t *testing.T) {
	t.Parallel()
	for field, set := range map[string]func(*migrations.Config, string){
		"WorkerNodesTable":         func(c *migrations.Config, s string) { c.WorkerNodesTable = s },
		"ConsumerAssignmentsTable": func(c *migrations.Config, s string) { c.ConsumerAssignmentsTable = s },
		"ConsumerCheckpointsTable": func(c *migrations.Config, s string) { c.ConsumerCheckpointsTable = s },
		"ConsumerGapSkipsTable":    func(c *migrations.Config, s string) { c.ConsumerGapSkipsTable = s },
		"LeaderElectionTable":      func(c *migrations.Config, s string) { c.LeaderElectionTable = s },
		"EventsTable":              func(c *migrations.Config, s string) { c.EventsTable = s },
		"AggregateHeadsTable":      func(c *migrations.Config, s string) { c.AggregateHeadsTable = s },
	} {
		for _, name := range []string{`x"; DROP TABLE events; --`, "a.b.c", "x y", "x;", "x\n", ".x", "x.", strings.Repeat("x", 64)} {
			var c migrations.Config
			set(&c, name)
			for what, f := range map[string]func(*migrations.Config) (string, error){"SQL": migrations.SQL, "StoreSQL": migrations.StoreSQL} {
				text, err := f(&c)
				if err == nil || text != "" || !strings.Contains(err.Error(), "Names."+strings.TrimSuffix(field, "Table")) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
					t.Errorf("%s with %s = %q: %q, %v; want an error that names both", what, field, name, text, err)
				}
			}
		}
	}
	long := strings.Repeat("x", 60)
	if _, err := migrations.SQL(&migrations.Config{ConsumerCheckpointsTable: long}); err == nil || !strings.Contains(err.Error(), "Names.ConsumerCheckpoints") {
		t.Errorf("a checkpoints table that leaves no room for %q: %v", "_schema", err)
	}
}
