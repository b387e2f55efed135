package ops_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// rows returns all rows of a consumer and its units, without the consumer's name, times of changes
// and revisions.
func (s site) rows(t *testing.T, name string) (all string) {
	t.Helper()
	for _, table := range []string{"consumer_checkpoints", "consumer_gap_skips", "consumer_dead_letters", "consumer_receipts"} {
		unit := "consumer_name"
		if table == "consumer_receipts" {
			unit = "unit"
		}
		var rows string
		s.scan(t, `SELECT coalesce(string_agg(unit || row, E'\n' ORDER BY unit, row), '') FROM (
			SELECT substr(`+unit+`, length('`+name+`') + 1) AS unit, (to_jsonb(r) - '{consumer_name,updated_at,revision,unit}'::text[])::text AS row
			FROM `+table+` AS r WHERE split_part(consumer_name, '#', 1) = '`+name+`') AS all_of_them`, &rows)
		all += rows + "\n"
	}
	return all
}

// A rename keeps all rows of the consumer and of its present and former units, and changes no other
// consumer. Nothing acts under the old name afterwards, until Retire frees it.
func TestRename(t *testing.T) {
	t.Parallel()
	s, low, _ := splitSite(t, "")
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	s.open(t, 3, 4)
	s.Exec(t, `UPDATE consumer_gap_skips SET consumer_name = 'c#000-7ff'`)
	s.open(t, 1, 1)
	s.Exec(t, `UPDATE consumer_gap_skips SET consumer_name = 'c#400-7ff', state = 'void', closed_at = now() WHERE consumer_name = 'c'`)
	s.Exec(t, `UPDATE consumer_checkpoints SET effects = '[{"first": 0, "last": 2047, "after": 2}]', scope = '{"types": ["Order"]}', scope_since = 1 WHERE consumer_name = 'c#000-7ff'`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c#000-7ff', $1), ('c#800-fff', $1)`, uuid.New())
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, consumers) VALUES (gen_random_uuid(), now() - interval '25 hours', '{b,c,cx}')`)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('cx', 4), ('cx#000-7ff', 4)`)
	s.Exec(t, `INSERT INTO jobs_emitted (emitter, position, n) VALUES ('c', 3, 1), ('c', 3, 2), ('cx', 3, 1)`)
	s.Exec(t, `INSERT INTO jobs_emitted_through (emitter, position) VALUES ('c', 2), ('cx', 2)`)
	if err := s.Partition(t.Context(), "c", 2, by); err != nil {
		t.Fatal(err)
	}
	for _, unit := range []string{"c", "c#000-7ff", "c#400-7ff", "cx", "cx#000-7ff"} { // c#400-7ff is a former unit
		s.receive(t, unit, 1, 3, 3)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET receipt = '{4,4,1,4,7}' WHERE split_at IS NULL`)
	before, others, revision := s.rows(t, "c"), s.rows(t, "cx"), s.consumer(t, "c").Revision

	if err := s.IfRevision(revision+1).Rename(t.Context(), "c", "d", by); !errors.As(err, new(*ops.MovedError)) {
		t.Fatalf("of another revision: %v", err)
	}
	preview, err := s.Preview(func(o *ops.Operator) error { return o.Rename(t.Context(), "c", "d", by) })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.IfRevision(revision).Rename(t.Context(), "c", "d", by); err != nil {
		t.Fatal(err)
	}
	if after := s.rows(t, "d"); after != before {
		t.Errorf("the rows are\n%s\nwant\n%s", after, before)
	}
	if after := s.rows(t, "cx"); after != others {
		t.Errorf("another consumer has\n%s\nwant\n%s", after, others)
	}
	for query, want := range map[string]int64{
		`SELECT count(*) FROM consumer_assignments`:                                              0,
		`SELECT count(*) FROM worker_nodes WHERE consumers = '{b,cx}'`:                           1,
		`SELECT count(*) FROM jobs_emitted WHERE emitter = 'd'`:                                  2,
		`SELECT count(*) FROM jobs_emitted WHERE emitter = 'cx'`:                                 1,
		`SELECT position FROM jobs_emitted_through WHERE emitter = 'd'`:                          2,
		`SELECT count(*) FROM consumer_checkpoints WHERE consumer_name ~ '^c(#|$)'`:              1,
		`SELECT min(revision) FROM consumer_checkpoints WHERE consumer_name ~ '^(c$|d#|d$)'`:     1,
		`SELECT count(*) FROM consumer_gap_skips WHERE consumer_name ~ '^c(#|$)'`:                0,
		`SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'd#000-7ff'`:           1,
		`SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'd' AND unit ~ '^d(#|$)'`:  3,
		`SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'c' OR unit ~ '^c(#|$)'`:   0,
		`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = 'c'`:               1<<63 - 1,
		`SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'd' AND partitions = 2`: 1,
	} {
		if got := s.count(t, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	const detail = `{"to": "d", "from": "c", "units": 2, "position": 3, "dead_letters": 1, "jobs_emitted": 2}`
	for i, want := range []string{"d", "c"} {
		if op := preview[i]; op.Consumer != want || op.Kind != ops.KindRename || string(op.Detail) != detail {
			t.Errorf("previewed %+v, %s", op, op.Detail)
		}
	}
	if got, want := s.kinds(t, "d"), "rename d, partition d"; got != want {
		t.Errorf("operations of the new name: %s, want %s", got, want)
	}
	if got, want := s.kinds(t, "c"), "rename c"; got != want {
		t.Errorf("operations of the old name: %s, want %s", got, want)
	}
	if c := s.consumer(t, "c"); c.RenamedTo != "d" || c.Position != 0 || c.Paused == nil || c.Paused.By.Reason != "renamed to d: a test" {
		t.Errorf("the old name is shown as %+v", c)
	}

	if err := s.Rename(t.Context(), "c", "d", by); !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("again: %v", err)
	}
	for name, change := range map[string]func() error{
		"resume":    func() error { return s.Resume(t.Context(), "c", by) },
		"reset":     func() error { return s.Reset(t.Context(), "c", 1, by) },
		"skip":      func() error { return s.SkipEvent(t.Context(), "c", 1, by) },
		"partition": func() error { return s.Partition(t.Context(), "c", 2, by) },
		"replay":    func() error { return s.Replay(t.Context(), "c", "Order", low, by) },
		"rename":    func() error { return s.Rename(t.Context(), "c", "e", by) },
	} {
		if err := change(); !errors.Is(err, ops.ErrNotFound) || !strings.Contains(err.Error(), `it was renamed to "d"`) {
			t.Errorf("%s of the old name: %v", name, err)
		}
	}
	if err := worker.NewWaiter(s.DB).WaitFor(t.Context(), "c", 1); !errors.Is(err, worker.ErrNoConsumer) {
		t.Errorf("a wait for the old name: %v", err)
	}
	if err := s.Rename(t.Context(), "d", "c", by); !errors.Is(err, ops.ErrExists) {
		t.Errorf("back, while the old name is kept: %v", err)
	}
	if err := errors.Join(s.Retire(t.Context(), "c", by), s.Rename(t.Context(), "d", "c", by)); err != nil {
		t.Fatal(err)
	}
	if after := s.rows(t, "c"); after != before {
		t.Errorf("renamed back, the rows are\n%s\nwant\n%s", after, before)
	}
}

// consumer returns a consumer as Consumers shows it.
func (s site) consumer(t *testing.T, name string) (found ops.Consumer) {
	t.Helper()
	all, err := s.Consumers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			found = c
		}
	}
	return found
}

// kinds lists a consumer's operations, the newest first.
func (s site) kinds(t *testing.T, name string) string {
	t.Helper()
	all, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: name}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range all {
		kinds = append(kinds, string(o.Kind)+" "+o.Consumer)
	}
	return strings.Join(kinds, ", ")
}

func TestRenameIsRefused(t *testing.T) {
	t.Parallel()
	insertNode := func(consumers string) string {
		return `INSERT INTO worker_nodes (worker_id, consumers) VALUES (gen_random_uuid(), ` + consumers + `)`
	}
	for name, c := range map[string]struct {
		fault, from, to string
		says            string
		err             error
	}{
		"no consumer":           {from: "e", to: "d", err: ops.ErrNotFound},
		"no name":               {from: "c", to: "", says: "the new name: ", err: ops.ErrInvalid},
		"a unit":                {from: "c#000-7ff", to: "d", err: ops.ErrInvalid},
		"to a unit":             {from: "c", to: "d#000-7ff", says: "the new name: ", err: ops.ErrInvalid},
		"to itself":             {from: "c", to: "c", err: ops.ErrUnchanged},
		"another consumer":      {fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('d')`, from: "c", to: "d", says: "consumer_checkpoints", err: ops.ErrExists},
		"units of another":      {fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('d#000-7ff')`, from: "c", to: "d", err: ops.ErrExists},
		"dead letters":          {fault: `UPDATE consumer_dead_letters SET consumer_name = 'd'`, from: "c", to: "d", says: "consumer_dead_letters", err: ops.ErrExists},
		"an audit":              {fault: `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, skip_to_position, highest_visible_position) VALUES ('d', gen_random_uuid(), 1, 1, 1)`, from: "c", to: "d", says: "consumer_gap_skips", err: ops.ErrExists},
		"receipts":              {fault: `INSERT INTO consumer_receipts (consumer_name, unit, first_position, last_position, events, positions, hash, partition_key) VALUES ('d', 'd', 1, 1, 0, 0, 0, '')`, from: "c", to: "d", says: "consumer_receipts", err: ops.ErrExists},
		"keys of both names":    {fault: `INSERT INTO jobs_emitted (emitter, position, n) VALUES ('c', 1, 1), ('d', 1, 1)`, from: "c", to: "d", says: "jobs_emitted", err: ops.ErrExists},
		"a retired consumer":    {fault: `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('d', 'retire', '{}', 'ann', 'a test')`, from: "c", to: "d", says: "retired", err: ops.ErrExists},
		"a worker":              {fault: insertNode(`'{b,c}'`), from: "c", to: "d", says: "has code for it"},
		"a worker of the new":   {fault: insertNode(`'{d}'`), from: "c", to: "d", says: `the new name "d": worker `},
		"a worker of any":       {fault: insertNode(`NULL`), from: "c", to: "d", says: "has code for it"},
		"a worker of neither":   {fault: insertNode(`'{b}'`), from: "c", to: "e"},
		"keys of the new alone": {fault: `INSERT INTO jobs_emitted (emitter, position, n) VALUES ('d', 1, 1)`, from: "c", to: "d"}, // EmitAs
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
				t.Fatal(err)
			}
			s.place(t, 3)
			s.deadLetter(t, 1, "a", 1)
			if c.fault != "" {
				s.Exec(t, c.fault)
			}
			err := s.Rename(t.Context(), c.from, c.to, by)
			switch refused := c.err != nil || c.says != ""; {
			case !refused && err != nil, refused && err == nil, c.err != nil && !errors.Is(err, c.err), refused && !strings.Contains(err.Error(), c.says):
				t.Errorf("%v, want %v and %q", err, c.err, c.says)
			case c.err == nil && refused && !errors.As(err, new(*ops.RegisteredError)):
				t.Errorf("%v is no RegisteredError", err)
			}
			if n := s.count(t, `SELECT count(*) FROM consumer_operations`); refused(err) && n > 0 && name != "a retired consumer" {
				t.Errorf("%d operations are recorded", n)
			}
		})
	}
}

func refused(err error) bool { return err != nil }

// A renamed consumer knows which events it has passed without their types, also after it was
// renamed back, which retires the old name in between.
func TestRenameKeepsWhatWasPassed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["Order", "Other"]}', scope_since = 0`)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		VALUES ('c', 'scope', '{"from": {"types": ["Other"]}, "to": {"types": ["Order", "Other"]}, "position": 2, "open": []}', 'w', 'r')`)
	missed := func(name string) {
		t.Helper()
		all, err := s.Preview(func(o *ops.Operator) error { return o.ReplayTypes(t.Context(), name, []string{"Order"}, by) })
		if err != nil || !strings.Contains(string(all[0].Detail), `"missed": 2`) {
			t.Errorf("of %s: %v, %v", name, all, err)
		}
	}
	missed("c")
	if err := s.Rename(t.Context(), "c", "d", by); err != nil {
		t.Fatal(err)
	}
	missed("d")
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		VALUES ('c', 'scope', '{"from": {"types": ["Other"]}, "to": {"types": ["Order"]}, "position": 9223372036854775807, "open": []}', 'w', 'r')`) // old programs
	if err := errors.Join(s.Retire(t.Context(), "c", by), s.Rename(t.Context(), "d", "c", by)); err != nil {
		t.Fatal(err)
	}
	missed("c")
	if got, want := s.kinds(t, "c"), "rename c, retire c, scope c, rename c, rename c, scope c"; got != want {
		t.Errorf("operations: %s, want %s", got, want)
	}
	if err := errors.Join(s.Retire(t.Context(), "d", by), s.Retire(t.Context(), "c", by)); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A worker places no checkpoint for a name that is renamed or taken at the same moment.
func TestRenameWhileAWorkerPlaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 3)
	begun := s.begin(t, "held", 1) // any transaction
	if _, err := begun.ExecContext(t.Context(), `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('d')`); err != nil {
		t.Fatal(err)
	}
	renamed := make(chan error, 1)
	go func() { renamed <- s.Rename(t.Context(), "c", "d", by) }()
	await(t, "the rename to wait for the new name's row", func() bool {
		return s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	end(t, begun.Commit)
	if err := <-renamed; !errors.Is(err, ops.ErrExists) {
		t.Errorf("%v", err)
	}
	if got := fmt.Sprint(s.progress(t)); got != "3 0" {
		t.Errorf("the consumer is at %s", got)
	}
}
