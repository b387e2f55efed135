package ops_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// A scope that this library did not write costs its consumer's scope, and no consumer.
func TestForeignScope(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, scope) VALUES
		('a', 1, '[1, 2]'), ('b', 2, '{"types": 7}'), ('c', 3, '{"types": ["Order"]}'), ('d', 4, NULL)`)
	all, err := s.Consumers(t.Context())
	if err != nil || len(all) != 4 || all[0].Scope != nil || all[1].Scope != nil || all[2].Scope == nil || all[2].Scope.Types[0] != "Order" || all[3].Scope != nil {
		t.Errorf("%+v, %v", all, err)
	}
}

// Blockers shows a transaction while it holds the log back.
func TestLogAndBlockers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	if l, err := s.Log(ctx); err != nil || l != (ops.Log{}) {
		t.Errorf("of an empty log: %+v, %v", l, err)
	}
	s.append(t, "a", 3)
	s.settle(t, 2)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, status) VALUES (gen_random_uuid(), now(), '{"Safe": 3}'), (gen_random_uuid(), now() - interval '1 hour', '{"Safe": 9}')`)
	idle, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Rollback() }()
	if _, err := idle.Exec(`SELECT txid_current()`); err != nil { // it has drawn no position
		t.Fatal(err)
	}
	tx := s.begin(t, "open", 1)
	var pid int
	var started time.Time
	if err := tx.QueryRow(`SELECT pg_backend_pid(), now() FROM pg_sleep(0.001)`).Scan(&pid, &started); err != nil {
		t.Fatal(err)
	}
	l, err := s.Log(ctx)
	if err != nil || l.Head != 3 || l.Settled != 2 || l.Safe != 3 || l.Open != 1 || l.OldestOpen < time.Millisecond {
		t.Errorf("%+v, %v", l, err)
	}
	all, err := s.Blockers(ctx, false)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	b := all[0]
	if b.PID != pid || b.State != "idle in transaction" || b.User == "" || b.Query != "" || b.Age < time.Millisecond || b.StateAge < 0 || b.BackendStart == nil || b.Start == nil || !b.Start.Equal(started) ||
		b.Remedy() != fmt.Sprintf("let its application end it, or SELECT pg_terminate_backend(%d)", pid) {
		t.Errorf("%+v", b)
	}
	if all, err = s.Blockers(ctx, true); err != nil || len(all) != 1 || !strings.Contains(all[0].Query, "pg_backend_pid") {
		t.Errorf("with its query: %+v, %v", all, err)
	}
	end(t, tx.Rollback)
	await(t, "nobody to hold it back", func() bool { all, err := s.Blockers(ctx, false); return err == nil && len(all) == 0 })
	for name, status := range map[string]string{"null": `NULL`, "of another program": `'{"Safe": "much"}'`, "a list": `'[]'`} {
		s.Exec(t, `UPDATE worker_nodes SET status = `+status)
		if l, err := s.Log(ctx); err != nil || l.Safe != l.Settled {
			t.Errorf("a status that is %s: %+v, %v", name, l, err)
		}
	}
}

// Preview of Terminate refuses if the server would refuse this role.
func TestTerminateWithoutPrivilege(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx, by := t.Context(), ops.By{Operator: "ann", Reason: "an import that nobody waits for"}
	var suffix string
	s.scan(t, `SELECT substr(current_database(), 7)`, &suffix)
	login := func(role string) *sql.DB {
		s.Exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
		t.Cleanup(func() { s.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
		s.Exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role+`; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role+`; GRANT pg_read_all_stats TO `+role)
		at, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		at.User = url.UserPassword(role, "secret")
		db, err := sql.Open("pgx", at.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	writing := login("w" + suffix)
	o, err := ops.New(login("o" + suffix))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(of *sql.DB) bool {
		tx, err := of.BeginTx(ctx, nil)
		if err == nil {
			_, err = tx.Exec(`SELECT nextval('events_global_position_seq')`)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		all, err := o.Blockers(ctx, false)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		terminate := func(o *ops.Operator) error { return o.Terminate(ctx, all[0], by) }
		_, would := o.Preview(terminate)
		if is := terminate(o); (is == nil) != (would == nil) || is != nil && is.Error() != would.Error() {
			t.Errorf("the preview: %v, the change: %v", would, is)
		}
		if would != nil && !(errors.Is(would, ops.ErrInvalid) && strings.Contains(would.Error(), "GRANT pg_signal_backend")) {
			t.Errorf("the preview: %v", would)
		}
		return would != nil
	}
	if !refused(s.DB) || !refused(writing) {
		t.Error("a session was ended without the right")
	}
	s.Exec(t, `GRANT pg_signal_backend TO o`+suffix)
	if !refused(s.DB) {
		t.Error("the session of a superuser was ended")
	}
	if refused(writing) {
		t.Error("refused with the right")
	}
}

// Terminate ends a session once. The session must still be in the shown transaction, and the
// role must have the right. Only then is the operation recorded. Preview ends no session.
func TestTerminate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx, by := t.Context(), ops.By{Operator: "ann", Reason: "an import that nobody waits for"}
	begin := func() (*sql.Tx, ops.Blocker) {
		tx, err := s.DB.BeginTx(ctx, nil)
		if err == nil {
			_, err = tx.Exec(`SELECT nextval('events_global_position_seq')`)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		all, err := s.Blockers(ctx, false)
		if err != nil || len(all) == 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		return tx, all[len(all)-1]
	}
	lives := func(tx *sql.Tx) bool { _, err := tx.Exec(`SELECT 1`); return err == nil }
	tx, b := begin()
	would, err := s.Preview(func(o *ops.Operator) error { return o.Terminate(ctx, b, by) })
	if err != nil || len(would) != 1 || would[0].Kind != ops.KindTerminate || would[0].Consumer != "" || !strings.Contains(string(would[0].Detail), fmt.Sprint(b.PID)) || !lives(tx) {
		t.Fatalf("the preview: %v, %v, the session lives: %t", would, err, lives(tx))
	}
	no := errors.New("no")
	if err := s.Confirmed(func(o *ops.Operator) error { return o.Terminate(ctx, b, by) }, func([]ops.Operation) error { return no }); !errors.Is(err, no) || !lives(tx) {
		t.Fatalf("not confirmed: %v, the session lives: %t", err, lives(tx))
	}
	unseen, prepared, other, next, heir := b, b, b, b, b
	unseen.Start, prepared.PID, other.PID = nil, 0, b.PID+1
	begun, came := b.Start.Add(-time.Microsecond), b.BackendStart.Add(-time.Microsecond)
	next.Start, heir.BackendStart = &begun, &came
	for what, c := range map[string]struct {
		b    ops.Blocker
		by   ops.By
		want error
	}{
		"no reason":      {b, ops.By{Operator: "ann"}, ops.ErrInvalid},
		"start not seen": {unseen, by, ops.ErrInvalid},
		"prepared":       {prepared, by, ops.ErrInvalid},
		"another":        {other, by, ops.ErrNoBlocker},
		"the next one":   {next, by, ops.ErrNoBlocker}, // of the same session
		"an heir":        {heir, by, ops.ErrNoBlocker}, // a session with the same process id
	} {
		if err := s.Terminate(ctx, c.b, c.by); !errors.Is(err, c.want) || !lives(tx) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	count := func() (n int) { s.scan(t, `SELECT count(*) FROM consumer_operations`, &n); return n }
	if count() != 0 {
		t.Errorf("%d operations were recorded, and nothing was ended", count())
	}
	err = s.Confirmed(func(o *ops.Operator) error { return o.Terminate(ctx, b, by) }, func(all []ops.Operation) error {
		if len(all) != 1 || all[0].Kind != would[0].Kind || string(all[0].Detail) != string(would[0].Detail) {
			t.Errorf("confirmed is %v, want %v", all, would)
		}
		return nil
	})
	if err != nil || count() != 1 {
		t.Fatalf("%v, %d operations, want 1", err, count())
	}
	await(t, "the session to end", func() bool { // the client sees the end before the server process has exited
		return !lives(tx) && s.count(t, fmt.Sprint(`SELECT count(*) FROM pg_stat_activity WHERE pid = `, b.PID)) == 0
	})
	if err := s.Terminate(ctx, b, by); !errors.Is(err, ops.ErrNoBlocker) || count() != 1 {
		t.Errorf("once more: %v, %d operations", err, count())
	}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := uuid.New(), uuid.New()
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, heartbeat_timeout, hostname, pid, build, protocol, consumers, status)
		VALUES ($1, now() - interval '1 minute', '90 s', 'h', 7, 'b1', 3, '{c,"d e"}', '{"Leader": true}')`, a)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, partitions) VALUES ($1, now() + interval '1 hour', '[]')`, b) // of another library with a wrong clock
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('d e', $1), ('c', $1)`, a)
	all, err := s.Workers(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if w := all[0]; w.ID != b || w.HeartbeatAge > -time.Minute || w.HeartbeatTimeout != 0 || w.Leader || w.Status != nil || w.Able != nil || w.Consumers != nil || w.Demands != nil || w.Host+w.Build != "" || w.PID != 0 {
		t.Errorf("the bare one: %+v", w)
	}
	if w := all[1]; w.ID != a || w.HeartbeatTimeout != 90*time.Second || w.HeartbeatAge < time.Minute || w.HeartbeatAge > time.Hour || !w.Leader || string(w.Status) != `{"Leader": true}` || fmt.Sprint(w.Able, len(w.Able)) != "[c d e] 2" ||
		fmt.Sprint(w.Consumers, len(w.Consumers)) != "[c d e] 2" || w.Host != "h" || w.PID != 7 || w.Build != "b1" || w.Protocol != 3 || w.CreatedAt.IsZero() {
		t.Errorf("%+v", w)
	}

	// StoppedWorkers omits a worker that has a row again. It also omits a worker that stopped
	// long ago, whatever the clock does.
	s.Exec(t, `INSERT INTO consumer_past_workers (worker_id, stopped_at, how) VALUES ($1, clock_timestamp(), 'dead')`, a)
	s.Exec(t, `INSERT INTO consumer_past_workers (worker_id, stopped_at, how, declared_by, hostname, pid, build, started_at)
		SELECT gen_random_uuid(), at, 'dead', $1::uuid, 'h', 8, 'b2', '-infinity' FROM unnest(ARRAY['-infinity', clock_timestamp() - interval '16 min', clock_timestamp() - interval '14 min', clock_timestamp() + interval '16 min', 'infinity']) AS at`, a)
	s.Exec(t, `INSERT INTO consumer_past_workers (worker_id, stopped_at, how) VALUES ($1, clock_timestamp(), 'stopped')`, uuid.New())
	stopped, err := s.StoppedWorkers(t.Context())
	if err != nil || len(stopped) != 2 {
		t.Fatalf("%+v, %v", stopped, err)
	}
	if w := stopped[0]; w.How != "stopped" || w.Host+w.Build != "" || w.PID != 0 || !w.StartedAt.IsZero() || w.DeclaredBy != uuid.Nil || time.Since(w.StoppedAt) > time.Hour {
		t.Errorf("the bare one: %+v", w)
	}
	if w := stopped[1]; w.How != "dead" || w.Host != "h" || w.PID != 8 || w.Build != "b2" || w.StartedAt.IsZero() || w.DeclaredBy != a || w.StoppedAt.After(stopped[0].StoppedAt) {
		t.Errorf("%+v", w)
	}
}

// partitioned is the consumer "c" in partitions.
type in struct {
	ledger
	parts consumer.Partitions
}

func (i *in) Partitions() consumer.Partitions { return i.parts }

// Workers shows the partition demand of the workers' code. It omits a demand of one partition.
// A build without partition support reports nothing.
func TestPartitionDemandOfWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, p := range []consumer.Partitions{{Count: 1}, {Count: 4}, {Count: 4, Key: consumer.ByKey("customer", func(e store.PersistedEvent) string { return e.AggregateID })}} {
		s.work(t, &in{parts: p})
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_timeout, consumers) VALUES (gen_random_uuid(), '1 hour', '{c}')`)
	want := "map[]; map[c:{4 customer}]; map[c:{4 }]; nil; "
	await(t, "the wishes "+want, func() bool {
		all, err := s.Workers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, w := range all {
			text := fmt.Sprint(w.Demands)
			if w.Demands == nil {
				text = "nil"
			}
			said = append(said, text)
		}
		slices.Sort(said)
		return strings.Join(said, "; ")+"; " == want
	})
}

func TestGaps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 20)
	s.open(t, 3, 5)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, closed_at)
		VALUES ('c', $1, 7, 9, 2, 'void', 10, 11, now()), ('c#000-7ff', gen_random_uuid(), 12, NULL, NULL, 'late', 13, 13, now()), ('d', $1, 1, 1, 1, 'void', 1, 1, now())`, uuid.Nil)
	list := func(consumer string, f ops.GapFilter, limit int) (text string) {
		all, err := s.Gaps(t.Context(), consumer, f, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range all {
			text += fmt.Sprintf("%s %d-%d/%d %s %v; ", g.Consumer, g.First, g.Last, g.Missing, g.State, g.ClosedAt == nil)
		}
		return text
	}
	for got, want := range map[string]string{
		list("c", ops.GapFilter{}, 10):               "c 7-9/2 void false; c 3-5/3 open true; ",
		list("c", ops.GapFilter{}, 1):                "c 7-9/2 void false; ",
		list("c", ops.GapFilter{Before: 2}, 1):       "c 3-5/3 open true; ",
		list("c", ops.GapFilter{OnlyOpen: true}, 10): "c 3-5/3 open true; ",
		list("c#000-7ff", ops.GapFilter{}, 10):       "c#000-7ff 12-12/1 late false; ", // a unit that was replaced
		list("x", ops.GapFilter{}, 10):               "",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c#000-7ff', 20)`) // the unit exists again
	if got, want := list("c", ops.GapFilter{}, 2), "c#000-7ff 12-12/1 late false; c 7-9/2 void false; "; got != want {
		t.Errorf("with a unit: %q, want %q", got, want)
	}
	if _, err := s.Gaps(t.Context(), "c", ops.GapFilter{}, 0); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("no limit: %v", err)
	}
}

// SkipEvent accepts the result of Next, for a consumer and each of its units.
func TestSkipEventAcceptsNext(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	if _, err := s.Next(ctx, "c"); !errors.Is(err, ops.ErrNoCheckpoint) {
		t.Errorf("of no consumer: %v", err)
	}
	s.append(t, "a", 3)
	s.burn(t, 2)
	s.append(t, "b", 1)
	s.settle(t, 6)
	s.place(t, 3)
	s.open(t, 2, 2)
	s.open(t, 1, 1)
	for _, want := range []struct {
		position int64
		late     bool
	}{{1, true}, {2, true}, {6, false}} {
		all, err := s.Next(ctx, "c")
		if err != nil || len(all) != 1 || all[0].Consumer != "c" || all[0].Checkpoint != 3 || all[0].Position != want.position || all[0].Late != want.late || all[0].EventType != "Happened" || all[0].EventID == uuid.Nil {
			t.Fatalf("%+v, %v, want %+v", all, err, want)
		}
		e, err := s.Event(ctx, all[0].Position)
		if err != nil || e.EventID != all[0].EventID || e.AggregateID != all[0].AggregateID || string(e.Payload) != `{}` || e.CreatedAt.IsZero() {
			t.Errorf("the event is %+v, %v", e, err)
		}
		if err := s.SkipEvent(ctx, "c", want.position, by); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.Next(ctx, "c"); err != nil || len(all) != 1 || all[0] != (ops.Next{Consumer: "c", Checkpoint: 6}) {
		t.Errorf("at the end: %+v, %v", all, err)
	}
	for _, position := range []int64{4, 7, 0, -1} {
		if _, err := s.Event(ctx, position); !errors.Is(err, ops.ErrNoEvent) {
			t.Errorf("the event at %d: %v", position, err)
		}
	}
	split, _, _ := splitSite(t, "")
	if all, err := split.Next(ctx, "c"); err != nil || len(all) != 2 || all[0].Consumer != "c#000-7ff" || all[0].Position != 4 || all[1].Position != 6 {
		t.Errorf("of units: %+v, %v", all, err)
	}
	if all, err := split.Next(ctx, "c#800-fff"); err != nil || len(all) != 1 || all[0].Position != 6 {
		t.Errorf("of one unit: %+v, %v", all, err)
	}
}

func TestOldestAgeIsThatOfFirstEvent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.Exec(t, `UPDATE events SET created_at = CASE global_position WHEN 3 THEN 'infinity' ELSE now() - (10 - global_position) * interval '1 hour' END`)
	for position, want := range []time.Duration{9 * time.Hour, 8 * time.Hour, 0, 0} {
		s.place(t, int64(position))
		all, err := s.Consumers(t.Context())
		if err != nil || len(all) != 1 || all[0].OldestAge.Truncate(time.Hour) != want {
			t.Errorf("at %d: %+v, %v, want %v", position, all, err, want)
		}
	}
	split, _, _ := splitSite(t, "")
	split.Exec(t, `UPDATE events SET created_at = now() - (10 - global_position) * interval '1 hour'`)
	split.Exec(t, `UPDATE consumer_checkpoints SET revision = 2`)
	all, err := split.Consumers(t.Context())
	if err != nil || len(all) != 1 || all[0].OldestAge.Truncate(time.Hour) != 6*time.Hour || all[0].Units[1].OldestAge.Truncate(time.Hour) != 4*time.Hour || all[0].Units[1].HeadLag != 3 || all[0].Units[0].Revision != 2 {
		t.Errorf("of units: %+v, %v", all, err)
	}
}

// filtered creates dead letters at 1 to 6, of the aggregates a, b, a, b, c, c.
func filtered(t *testing.T) site {
	s := newSite(t)
	s.append(t, "x", 6)
	s.place(t, 9)
	for i, aggregate := range []string{"a", "b", "a", "b", "c", "c"} {
		s.deadLetter(t, int64(i+1), aggregate, (i+1)%2)
	}
	s.Exec(t, `UPDATE consumer_dead_letters SET error = '50% off' WHERE global_position = 5`)
	s.Exec(t, `UPDATE consumer_dead_letters SET event_type = 'Paid', created_at = now() - interval '2 hours' WHERE global_position IN (2, 3)`)
	s.Exec(t, `UPDATE events SET payload = convert_to('p' || global_position, 'UTF8'), metadata = '{"a": 1}' WHERE global_position < 6`)
	s.Exec(t, `DELETE FROM events WHERE global_position = 4`)
	return s
}

func TestFilterDeadLetters(t *testing.T) {
	t.Parallel()
	s := filtered(t)
	for name, c := range map[string]struct {
		f     ops.DeadLetterFilter
		limit int
		want  string
	}{
		"all":            {ops.DeadLetterFilter{}, 10, "1 2 3 4 5 6"},
		"a page":         {ops.DeadLetterFilter{After: 2}, 3, "3 4 5"},
		"a type":         {ops.DeadLetterFilter{EventType: "Paid", AggregateType: "Order"}, 10, "2 3"},
		"another type":   {ops.DeadLetterFilter{AggregateType: "Invoice"}, 10, ""},
		"an error":       {ops.DeadLetterFilter{Error: "0% o"}, 10, "5"},
		"no pattern":     {ops.DeadLetterFilter{Error: "%"}, 10, "5"},
		"an age":         {ops.DeadLetterFilter{OlderThan: time.Hour}, 10, "2 3"},
		"all conditions": {ops.DeadLetterFilter{AggregateType: "Order", EventType: "Paid", Error: "boom", OlderThan: time.Minute, After: 1}, 10, "3"},
	} {
		for _, payload := range []bool{false, true} {
			all, err := s.FilterDeadLetters(t.Context(), "c", c.f, payload, c.limit)
			var got []string
			for _, l := range all {
				got = append(got, fmt.Sprint(l.Position))
				if want := fmt.Sprint("p", l.Position); payload && l.Position < 4 && (string(l.Payload) != want || string(l.Metadata) != `{"a": 1}`) || !payload && l.Payload != nil || l.Position == 4 && l.Payload != nil {
					t.Errorf("%s: %+v carries %q", name, l, l.Payload)
				}
			}
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%s: %v, %v, want %s", name, got, err, c.want)
			}
		}
	}
	for says, f := range map[string]ops.DeadLetterFilter{"DeadLetterFilter.Error": {Error: "\x00"}, "may be below 0": {OlderThan: -1}} {
		_, err := s.FilterDeadLetters(t.Context(), "c", f, false, 1)
		if _, bulk := s.RetryDeadLettersWhere(t.Context(), "c", f, 1, by); !errors.Is(err, ops.ErrInvalid) || !errors.Is(bulk, ops.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, %v", f, err, bulk)
		}
	}
}

// A change of many dead letters is one transaction and one operation with their number.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	s := filtered(t)
	ctx := t.Context()
	n, err := s.RetryDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{EventType: "Paid", After: 2}, 10, by) // 3 of a
	if err != nil || n != 2 || s.deadLetters(t) != "1 a true; 2 b false; 3 a true; 4 b false; 5 c false; 6 c false; " {
		t.Errorf("retried %d, %v: %s", n, err, s.deadLetters(t))
	}
	var d struct {
		Filter    ops.DeadLetterFilter
		Letters   int64
		Positions []int64
	}
	if op := s.last(t, &d); op.Kind != ops.KindRetry || d.Letters != 2 || d.Filter.EventType != "Paid" || d.Filter.After != 2 {
		t.Errorf("recorded %+v, %+v", op, d)
	}
	if n, err = s.DiscardDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{Error: "boom"}, 1, by); err != nil || n != 1 {
		t.Errorf("discarded %d, %v", n, err)
	}
	if n, err = s.DiscardDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{After: 2}, 10, by); err != nil || n != 4 || s.deadLetters(t) != "2 b false; " {
		t.Errorf("discarded %d, %v: %s", n, err, s.deadLetters(t))
	}
	if op := s.last(t, &d); op.Kind != ops.KindDiscard || d.Letters != 4 || fmt.Sprint(d.Positions) != "[3 4 5 6]" {
		t.Errorf("recorded %+v, %+v", op, d)
	}
	s.expectProgress(t, 9, 3)
	if n, err = s.DiscardDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{After: 2}, 10, by); n != 0 || !errors.Is(err, ops.ErrNoDeadLetter) {
		t.Errorf("discarded %d, %v", n, err)
	}
	s.expectProgress(t, 9, 3)

	// Of aggregates with the same id, only those of the type are retried.
	named := newSite(t)
	named.place(t, 9)
	named.deadLetter(t, 1, "a", 1)
	named.deadLetter(t, 2, "a", 1)
	named.Exec(t, `UPDATE consumer_dead_letters SET aggregate_type = 'Invoice' WHERE global_position = 2`)
	if n, err = named.RetryDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{AggregateType: "Invoice"}, 10, by); err != nil || n != 1 || named.deadLetters(t) != "1 a false; 2 a true; " {
		t.Errorf("retried %d, %v: %s", n, err, named.deadLetters(t))
	}

	split, low, high := splitSite(t, "")
	split.deadLetter(t, 6, high, 1)
	split.deadLetter(t, 7, high, 0)
	split.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#800-fff' WHERE consumer_name = 'c'`)
	if all, err := split.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{}, false, 10); err != nil || len(all) != 3 || all[2].Partition != "800-fff" {
		t.Errorf("of units: %+v, %v", all, err)
	}
	// The units' positions interleave: the first dead letters are not those of the first unit.
	split.Exec(t, `UPDATE consumer_dead_letters SET global_position = 2 WHERE global_position = 7`)
	split.deadLetter(t, 3, low, 1)
	split.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#000-7ff' WHERE consumer_name = 'c'`)
	if n, err = split.DiscardDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{}, 2, by); err != nil || n != 2 || split.stands(t) != "0:3.1 8:5.1" {
		t.Errorf("discarded %d, %v: %s", n, err, split.stands(t))
	}
	if all, err := split.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{}, false, 10); err != nil || len(all) != 2 || all[0].Position != 3 || all[1].Position != 6 {
		t.Errorf("after the first two: %+v, %v", all, err)
	}
	if n, err = split.RetryDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{}, 2, by); err != nil || n != 2 || split.stands(t) != "0:3.2 8:5.2" {
		t.Errorf("retried %d, %v: %s", n, err, split.stands(t))
	}
}

// With 100,000 rows, reads read little more than they return, whatever the planner's statistics
// say.
func TestPlansOfReads(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, table := range []string{"events", "consumer_dead_letters", "consumer_gap_skips", "consumer_operations"} {
		s.Exec(t, `ALTER TABLE `+table+` SET (autovacuum_enabled = off)`)
		s.Exec(t, `ANALYZE `+table)
	}
	n := tier.Amount(20_000, 100_000)
	s.place(t, int64(n/2))
	s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, 'T', i::text, 1, gen_random_uuid(), 'Happened', '' FROM generate_series(1, $1::int) AS i`, n)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT CASE WHEN i % 2 = 0 THEN 'c' ELSE 'd' END, i, 'T', i::text, gen_random_uuid(), 'Happened', 0 FROM generate_series(1, $1::int) AS i`, n)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, closed_at)
		SELECT CASE WHEN i % 2 = 0 THEN 'c' ELSE 'd' END, gen_random_uuid(), i, i, 1, CASE WHEN i = 77 THEN 'open' ELSE 'void' END, i, i, CASE WHEN i <> 77 THEN now() END FROM generate_series(1, $1::int) AS i`, n)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		SELECT CASE WHEN i < 20 THEN 'c#000-7ff' ELSE 'd' END, 'pause', '{}', 'ann', 'r' FROM generate_series(1, $1::int) AS i`, n)
	conn, err := s.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, knowledge := range []string{`of empty tables`, `of today`} {
		if knowledge == `of today` {
			s.Exec(t, `ANALYZE`)
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			for name, read := range s.ReadsSQL() {
				most := 60.0
				switch name {
				case "consumers": // it counts the dead letters, half of which are the consumer's
					most += float64(n)
				case "letters of a filter":
					most += float64(n) / 2
				}
				if root, plan := pgtest.Explain(t, conn, mode, read[0], read[1]); root.Visited() > most {
					t.Errorf("%s, %s, statistics %s: %v rows are read, want at most %v\n%s", name, mode, knowledge, root.Visited(), most, plan)
				}
			}
		}
	}
}

// Changes of 10,000 dead letters do an index lookup for each, and unnest their list once. This
// holds without statistics, too.
func TestPlansOfManyDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := tier.Amount(3_000, 10_000)
	s.place(t, int64(n))
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', i, 'Order', i::text, gen_random_uuid(), 'Happened', 'boom', 1 FROM generate_series(1, $1::int) AS i`, n)
	conn, err := s.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var numbers string
	s.scan(t, fmt.Sprintf(`SELECT array_agg(i)::text FROM generate_series(1, %d) AS i`, n), &numbers)
	list := regexp.MustCompile(`"(Filter|Join Filter)": "[^"]*bigint\[\]`)
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for name, statement := range map[string]string{"retry": s.RetryManySQL(), "discard": s.DiscardManySQL()} {
			if _, err := conn.ExecContext(t.Context(), `BEGIN`); err != nil {
				t.Fatal(err)
			}
			root, plan := pgtest.Explain(t, conn, mode, statement, `('c', '`+numbers+`')`)
			if root.Visited() > float64(10*n) || list.MatchString(plan) {
				t.Errorf("%s, %s: %v rows are read\n%.5000s", name, mode, root.Visited(), plan)
			}
			if _, err := conn.ExecContext(t.Context(), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Lists succeed, and marshal to JSON, whatever times another program has stored.
func TestListsWithFarTimes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	j := jobsSite{s.Database, jobsOperator(t, s.DB)}
	ctx := t.Context()
	s.append(t, "a", 4)
	s.place(t, 1)
	s.open(t, 2, 2)
	s.deadLetter(t, 1, "a", 1)
	s.Exec(t, `UPDATE consumer_dead_letters SET retry_at = now()`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid) VALUES (gen_random_uuid(), '{c}', 'h', 1)`)
	for _, state := range append(slices.Clone(unfinished), finished...) {
		j.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, started_at, outcome) VALUES ($1, 1, now(), 'error')`, j.add(t, state))
	}
	id := value[int64](t, j, `SELECT max(id) FROM jobs_history WHERE state = 'failed'`)
	running := value[int64](t, j, `SELECT max(id) FROM jobs WHERE state = 'running'`)
	j.Exec(t, `UPDATE jobs SET cancel_at = now() WHERE id = $1`, running)
	j.Exec(t, `INSERT INTO jobs_logs (job_id, attempt, entry) VALUES ($1, 1, '1')`, id)
	j.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at, last_at, paused_at) VALUES ('s', 'h', now(), now(), now())`)
	f := flow.New[int]("one")
	flow.Add[flow.None](f, "first", func(int) firstJob { return firstJob{} })
	started, err := f.Start(ctx, flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Retry(ctx, id, by); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Pause(ctx, "c", by), j.PauseQueue(ctx, "slow", by)); err != nil {
		t.Fatal(err)
	}
	refused := func(want error, err error) error {
		if !errors.Is(err, want) {
			return fmt.Errorf("got %w, want %w", err, want)
		}
		return nil
	}
	client := jobs.NewClient(s.DB)
	reads := map[string]func() (any, error){
		"Consumers":        func() (any, error) { return s.Consumers(ctx) },
		"Operations":       func() (any, error) { return s.Operator.Operations(ctx, ops.OperationFilter{}, 10) },
		"consumer's":       func() (any, error) { return s.Operator.Operations(ctx, ops.OperationFilter{Consumer: "c"}, 10) },
		"DeadLetters":      func() (any, error) { return s.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{}, true, 10) },
		"Gaps":             func() (any, error) { return s.Gaps(ctx, "c", ops.GapFilter{}, 10) },
		"Workers":          func() (any, error) { return s.Workers(ctx) },
		"Event":            func() (any, error) { return s.Event(ctx, 2) },
		"Next":             func() (any, error) { return s.Next(ctx, "c") },
		"Pause":            func() (any, error) { return nil, refused(ops.ErrPaused, s.Pause(ctx, "c", by)) },
		"List":             func() (any, error) { return j.List(ctx, ops.JobFilter{}, 100) },
		"Attempts":         func() (any, error) { return j.Attempts(ctx, id) },
		"jobs' Operations": func() (any, error) { return j.Operations(ctx, ops.OperationFilter{}, 10) },
		"Queues":           func() (any, error) { return j.Queues(ctx) },
		"Schedules":        func() (any, error) { return j.Schedules(ctx) },
		"FlowRun":          func() (any, error) { return j.FlowRun(ctx, started.Run) },
		"FlowRuns":         func() (any, error) { return j.FlowRuns(ctx, flow.Filter{}, 10) },
		"PauseQueue":       func() (any, error) { return nil, refused(ops.ErrPaused, j.PauseQueue(ctx, "slow", by)) },
		"PauseSchedule":    func() (any, error) { return nil, refused(ops.ErrPaused, j.PauseSchedule(ctx, "s", by)) },
		"Retry": func() (any, error) {
			if _, err := j.Retry(ctx, id, by); !isRetried(err) {
				return nil, fmt.Errorf("not refused: %w", err)
			}
			return nil, nil
		},
		"Get":                func() (any, error) { return client.Get(ctx, id) },
		"Get of one running": func() (any, error) { return client.Get(ctx, running) },
		"Logs":               func() (any, error) { return client.Logs(ctx, id) },
		"Enqueued":           func() (any, error) { return workertest.Enqueued[mailJob](ctx, s.DB) },
		"Cancel": func() (any, error) {
			_, err := j.Cancel(ctx, running, by)
			if refused := (*ops.StateError)(nil); !errors.As(err, &refused) {
				return nil, fmt.Errorf("not refused: %w", err)
			}
			return nil, nil
		},
	}
	columns, err := pgdriver.QueryAll(ctx, s.DB, func(r *sql.Rows) (c [2]string, err error) { return c, r.Scan(&c[0], &c[1]) }, `
SELECT c.table_name, c.column_name FROM information_schema.columns AS c
WHERE c.table_schema = 'public' AND c.data_type LIKE 'timestamp%' ORDER BY 1, 2`)
	if err != nil || len(columns) < 40 {
		t.Fatalf("%d columns, %v", len(columns), err)
	}
	for _, at := range []string{"-infinity", "4713-01-01 BC", "20000-01-01", "294276-12-31 23:59:59.999999", "infinity"} {
		for _, c := range columns {
			s.Exec(t, fmt.Sprintf(`UPDATE %s SET %s = $1 WHERE %[2]s IS NOT NULL`, c[0], c[1]), at)
		}
		for name, read := range reads {
			got, err := read()
			if err == nil {
				_, err = json.Marshal(got)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", at, name, err)
			}
		}
	}
}

type mailJob struct{}

func (mailJob) Kind() string { return "mail" }

// An operator whose role lacks a privilege is told how to give it.
func TestRoleWithoutGrants(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var role string
	s.scan(t, `SELECT 'n' || substr(current_database(), 7)`, &role)
	s.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { s.Exec(t, `DROP ROLE `+role) })
	o := operator(t, s.OpenSet(t, "role", role))
	_, err := o.Consumers(t.Context())
	for what, err := range map[string]error{"a read": err, "a change": o.Pause(t.Context(), "c", by)} {
		if !errors.Is(err, worker.ErrPrivileges) || !strings.Contains(err.Error(), "migrations.Grants") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
