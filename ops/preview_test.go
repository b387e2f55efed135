package ops_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

// format formats an operation without its ID and time.
func format(consumer string, kind ops.Kind, by ops.By, detail []byte) string {
	return fmt.Sprintf("%s of %s by %v: %s", kind, consumer, by, detail)
}

// dump returns all rows of tables as text.
func dump(t testing.TB, scan func(query string, into ...any), tables ...string) (all string) {
	t.Helper()
	for _, table := range tables {
		var rows string
		scan(`SELECT coalesce(string_agg(r::text, E'\n' ORDER BY r::text), '') FROM `+table+` AS r`, &rows)
		all += table + ":\n" + rows + "\n"
	}
	return all
}

var consumerTables = []string{"events", "worker_nodes", "consumer_assignments", "consumer_checkpoints", "consumer_gap_skips", "consumer_dead_letters", "consumer_operations", "consumer_checkpoints_changes", "consumer_checkpoints_settled"}

// drawConsumer creates a random state of the consumer "c", whole or in two units.
func drawConsumer(rt *rapid.T, t *testing.T, s site) {
	s.Exec(t, `TRUNCATE `+strings.Join(consumerTables, `, `))
	position := rapid.Int64Range(0, 9)
	percent := func(n int, what string) bool { return rapid.IntRange(0, 99).Draw(rt, what) < n }
	for p := range int64(8) {
		if percent(75, "event") {
			s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
				VALUES ($1, 'Order', $2, 1, gen_random_uuid(), 'Happened', '')`, p+1, fmt.Sprint("a", p))
		}
	}
	s.Exec(t, `SELECT setval('events_global_position_seq', 9)`)
	s.settle(t, position.Draw(rt, "settled"))
	place := func(name string) {
		at := position.Draw(rt, "checkpoint")
		s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, revision, partitions) VALUES ($1, $2, $3, nullif($4, 0))`,
			name, at, rapid.IntRange(0, 5).Draw(rt, "revision"), rapid.IntRange(0, 3).Draw(rt, "fixed"))
		if percent(30, "effects") {
			s.Exec(t, `UPDATE consumer_checkpoints SET effects = '[{"first": 0, "last": 4095, "after": 5, "except": [{"first": 2, "last": 3}]}]' WHERE consumer_name = $1`, name)
		}
		if percent(40, "paused") {
			s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name = $1`, name)
		}
		for p := int64(1); p <= at; p++ {
			switch {
			case percent(30, "letter"):
				s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
					VALUES ($1, $2, 'Order', $3, gen_random_uuid(), $4, 'boom', 1)`, name, p, fmt.Sprint("a", p%2), fmt.Sprint("T", p%3))
			case percent(30, "open"):
				s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
					VALUES ($1, gen_random_uuid(), $2, $2, 1, 'open', $2, $2)`, name, p)
			}
		}
	}
	place("c")
	if percent(30, "split") {
		s.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now(), paused_by = 'partitions', paused_reason = 'split'`)
		place("c#000-7ff")
		place("c#800-fff")
	}
	if percent(20, "registered") {
		s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid) VALUES ($1, '{c}', 'h', 1)`, uuid.Nil)
	}
}

// revisionOf returns the revision of a consumer or a unit from the list of consumers.
func revisionOf(rt *rapid.T, o *ops.Operator, name string) int64 {
	all, err := o.Consumers(context.Background())
	if err != nil {
		rt.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			return c.Revision
		}
		for _, u := range c.Units {
			if u.Name == name {
				return u.Revision
			}
		}
	}
	return 0
}

// twice runs check two times, since the setup costs more than a check.
func twice(check func(rt *rapid.T)) func(rt *rapid.T) {
	return func(rt *rapid.T) {
		check(rt)
		check(rt)
	}
}

// Preview changes nothing, and returns exactly the operations or the error of the change. A
// longer search:
//
//	go test -run Preview ./ops -rapid.checks=1500
func TestPreviewMatchesChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	seen := map[string]int{}
	rapid.Check(t, twice(func(rt *rapid.T) {
		drawConsumer(rt, t, s)
		consumer := rapid.SampledFrom([]string{"c", "c", "c", "c#000-7ff"}).Draw(rt, "consumer")
		position := rapid.Int64Range(-1, 9).Draw(rt, "position")
		limit := rapid.IntRange(1, 3).Draw(rt, "limit")
		f := ops.DeadLetterFilter{EventType: rapid.SampledFrom([]string{"", "T0", "T1"}).Draw(rt, "type")}
		name := rapid.SampledFrom([]string{"pause", "resume", "reset", "skip", "retry", "discard", "retry where", "discard where", "partition", "retire", "rename", "replay"}).Draw(rt, "change")
		aggregate := fmt.Sprint("a", rapid.IntRange(0, 8).Draw(rt, "aggregate"))
		var n int64
		change := func(o *ops.Operator) (err error) {
			switch name {
			case "pause":
				err = o.Pause(ctx, consumer, by)
			case "resume":
				err = o.Resume(ctx, consumer, by)
			case "reset":
				err = o.Reset(ctx, consumer, position, by)
			case "skip":
				err = o.SkipEvent(ctx, consumer, position, by)
			case "retry":
				err = o.RetryDeadLetters(ctx, consumer, position, by)
			case "discard":
				err = o.DiscardDeadLetter(ctx, consumer, position, by)
			case "retry where":
				n, err = o.RetryDeadLettersWhere(ctx, consumer, f, limit, by)
			case "discard where":
				n, err = o.DiscardDeadLettersWhere(ctx, consumer, f, limit, by)
			case "partition":
				err = o.Partition(ctx, consumer, limit-1, by)
			case "retire":
				err = o.Retire(ctx, consumer, by)
			case "rename":
				err = o.Rename(ctx, consumer, "d", by)
			case "replay":
				err = o.Replay(ctx, consumer, "Order", aggregate, by)
			}
			return err
		}
		scan := func(query string, into ...any) { s.scan(t, query, into...) }
		before := dump(t, scan, consumerTables...)
		preview, foreseen := s.Preview(change)
		said := n
		if after := dump(t, scan, consumerTables...); after != before {
			rt.Fatalf("the preview of %s changed\n%s\ninto\n%s", name, before, after)
		}

		// With the current revision, Preview returns the same. With another revision, it
		// refuses.
		revision := revisionOf(rt, s.Operator, consumer)
		again, err := s.IfRevision(revision).Preview(change)
		if fmt.Sprint(err) != fmt.Sprint(foreseen) || len(again) != len(preview) {
			rt.Fatalf("%s with the revision %d: %v, %v; without %v", name, revision, again, err, foreseen)
		}
		var moved *ops.MovedError
		err = change(s.IfRevision(revision + 1))
		if foreseen == nil && (!errors.As(err, &moved) || moved.Decided != revision+1 || moved.Revision != revision) {
			rt.Fatalf("%s with another revision: %v", name, err)
		}
		if after := dump(t, scan, consumerTables...); err == nil || after != before {
			rt.Fatalf("%s with another revision: %v, changed\n%s\ninto\n%s", name, err, before, after)
		}

		n = 0
		err = change(s.Operator)
		if fmt.Sprint(err) != fmt.Sprint(foreseen) || n != said {
			rt.Fatalf("%s of %s: the preview says %d, %v; then %d, %v", name, consumer, said, foreseen, n, err)
		}
		all, err := s.Operations(ctx, ops.OperationFilter{}, 10)
		if err != nil {
			rt.Fatal(err)
		}
		var previewed, happened []string
		for _, op := range preview {
			if op.ID != 0 || time.Since(op.At) > time.Hour {
				rt.Fatalf("the preview of %s is %+v", name, op)
			}
			previewed = append(previewed, format(op.Consumer, op.Kind, op.By, op.Detail))
		}
		for i := len(all) - 1; i >= 0; i-- {
			happened = append(happened, format(all[i].Consumer, all[i].Kind, all[i].By, all[i].Detail))
		}
		if fmt.Sprint(previewed) != fmt.Sprint(happened) {
			rt.Fatalf("%s: foretold %q, then %q", name, previewed, happened)
		}
		if foreseen == nil {
			seen[name]++
		} else {
			seen["refused"]++
		}
	}))
	expectSeen(t, seen, 12)
}

// expectSeen fails the test if a longer run has not reached every change.
func expectSeen(t *testing.T, seen map[string]int, changes int) {
	t.Helper()
	all := 0
	for _, n := range seen {
		all += n
	}
	t.Logf("changes: %v", seen)
	if all >= 1_000 && len(seen) < changes+1 {
		t.Errorf("in %d states, %d changes were refused or came to nothing", all, changes+1-len(seen))
	}
}

var jobsTables = []string{"jobs", "jobs_history", "jobs_queues", "jobs_operations", "jobs_changes", "jobs_attempts", "jobs_schedules"}

// Preview of jobs returns the operations of the change. Only the IDs of new jobs differ, since
// a sequence does not roll back.
func TestPreviewOfJobsMatchesChange(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	states := []jobs.State{jobs.StateAvailable, jobs.StateRunning, jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired}
	fresh := regexp.MustCompile(`"new_job": \d+`)
	seen := map[string]int{}
	rapid.Check(t, twice(func(rt *rapid.T) {
		s.Exec(t, `TRUNCATE `+strings.Join(jobsTables, `, `))
		var ids []int64
		for range rapid.IntRange(1, 3).Draw(rt, "jobs") {
			id := s.add(t, rapid.SampledFrom(states).Draw(rt, "state"))
			if rapid.Bool().Draw(rt, "later") {
				s.later(t, id)
			}
			ids = append(ids, id)
		}
		if rapid.Bool().Draw(rt, "settings") {
			s.Exec(t, `INSERT INTO jobs_queues (name, max_running, paused_at, paused_by, paused_reason) VALUES ('slow', 3, now(), 'bob', 'lunch')`)
		}
		if rapid.Bool().Draw(rt, "schedule") {
			s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', '', now())`)
			if rapid.Bool().Draw(rt, "schedule paused") {
				s.Exec(t, `UPDATE jobs_schedules SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch'`)
			}
		}
		id := rapid.SampledFrom(append(ids, 1_000_000_000)).Draw(rt, "job")
		name := rapid.SampledFrom([]string{"pause", "resume", "cap", "no cap", "retention", "no retention", "cancel", "cancel all", "retry", "rerun", "discard", "pause schedule", "resume schedule", "remove schedule"}).Draw(rt, "change")
		change := func(o *ops.Jobs) (err error) {
			switch name {
			case "pause":
				err = o.PauseQueue(ctx, "slow", by)
			case "resume":
				err = o.ResumeQueue(ctx, "slow", by)
			case "cap":
				err = o.SetCap(ctx, "slow", 3, by)
			case "no cap":
				err = o.RemoveCap(ctx, "slow", by)
			case "retention":
				err = o.SetRetention(ctx, "slow", time.Hour, by)
			case "no retention":
				err = o.RemoveRetention(ctx, "slow", by)
			case "cancel":
				_, err = o.Cancel(ctx, id, by)
			case "cancel all":
				_, err = o.CancelAll(ctx, ops.JobFilter{Kind: "mail"}, 2, by)
			case "retry":
				_, err = o.Retry(ctx, id, by)
			case "rerun":
				_, err = o.Rerun(ctx, id, by)
			case "discard":
				err = o.Discard(ctx, id, by)
			case "pause schedule":
				err = o.PauseSchedule(ctx, "nightly", by)
			case "resume schedule":
				err = o.ResumeSchedule(ctx, "nightly", by)
			case "remove schedule":
				err = o.RemoveSchedule(ctx, "nightly", by)
			}
			return err
		}
		scan := func(query string, into ...any) {
			if err := s.DB.QueryRowContext(context.Background(), query).Scan(into...); err != nil {
				rt.Fatalf("%v in %s", err, query)
			}
		}
		before := dump(t, scan, jobsTables...)
		preview, foreseen := s.Preview(change)
		if after := dump(t, scan, jobsTables...); after != before {
			rt.Fatalf("the preview of %s changed\n%s\ninto\n%s", name, before, after)
		}
		err := change(s.Jobs)
		if fmt.Sprint(err) != fmt.Sprint(foreseen) {
			rt.Fatalf("%s: the preview says %v; then %v", name, foreseen, err)
		}
		all, err := s.Operations(ctx, ops.OperationFilter{}, 10)
		if err != nil || len(all) != len(preview) || (len(all) == 0) != (foreseen != nil) {
			rt.Fatalf("%s: %d operations, %v; foretold %d, %v", name, len(all), err, len(preview), foreseen)
		}
		for i, op := range preview {
			previewed, happened := format(fmt.Sprint(op.Job, op.Queue, op.ID), op.Kind, op.By, op.Detail), format(fmt.Sprint(all[i].Job, all[i].Queue, 0), all[i].Kind, all[i].By, all[i].Detail)
			if fresh.ReplaceAllString(previewed, "") != fresh.ReplaceAllString(happened, "") {
				rt.Fatalf("%s: foretold %s, then %s", name, previewed, happened)
			}
		}
		if foreseen == nil {
			seen[name]++
		} else {
			seen["refused"]++
		}
	}))
	expectSeen(t, seen, 14)
}

// In a preview of several changes, a change that fails records nothing, and later changes are
// recorded.
func TestPreviewOfSeveral(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	ctx := t.Context()
	all, err := s.Preview(func(o *ops.Operator) error {
		if err := o.Resume(ctx, "c", by); !errors.Is(err, ops.ErrNotPaused) {
			t.Errorf("resume: %v", err)
		}
		return errors.Join(o.Pause(ctx, "c", by), o.Pause(ctx, "c", by), o.IfRevision(0).Reset(ctx, "c", 5, by))
	})
	if err != nil || len(all) != 3 || all[0].Kind != ops.KindPause || all[2].Kind != ops.KindReset {
		t.Errorf("%+v, %v", all, err)
	}
	s.expectUntouched(t, 2)
	list, err := s.Consumers(ctx)
	if err != nil || len(list) != 1 {
		t.Fatal(err)
	}
	o := s.IfRevision(list[0].Revision)
	if err := o.Pause(ctx, "c", by); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{o.Resume(ctx, "c", by), o.Partition(ctx, "c", 2, by), o.Retire(ctx, "c", by)} {
		if moved := (*ops.MovedError)(nil); !errors.As(err, &moved) || !strings.Contains(err.Error(), "decided on revision 0, and the consumer has revision 1 now") {
			t.Errorf("decided before the pause: %v", err)
		}
	}
}

// A change that fails at its second unit records nothing for its first unit.
func TestPreviewOfChangeFailingAtSecondUnit(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "")
	s.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$`)
	s.Exec(t, `CREATE TRIGGER refuse BEFORE INSERT ON consumer_operations FOR EACH ROW WHEN (NEW.consumer_name = 'c#800-fff') EXECUTE FUNCTION refuse()`)
	all, err := s.Preview(func(o *ops.Operator) error {
		if err := o.Pause(t.Context(), "c", by); err == nil {
			t.Error("the second unit was paused")
		}
		return nil
	})
	if err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Preview of flow runs changes nothing, and returns the operations or the error of the change.
func TestPreviewOfFlowRuns(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	f := flow.New[int]("two")
	flow.Add[flow.None](f, "second", func(int) secondJob { return secondJob{} }, flow.After(flow.Add[flow.None](f, "first", func(int) firstJob { return firstJob{} })))
	started, err := f.Start(ctx, flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	scan := func(query string, into ...any) {
		if err := s.DB.QueryRowContext(context.Background(), query).Scan(into...); err != nil {
			t.Fatalf("%v in %s", err, query)
		}
	}
	for _, change := range []func(o *ops.Jobs) error{
		func(o *ops.Jobs) error { return o.RetryFlowRun(ctx, started.Run, by) }, // refused: the run has not ended
		func(o *ops.Jobs) error { return o.CancelFlowRun(ctx, started.Run, by) },
		func(o *ops.Jobs) error { return o.RetryFlowRun(ctx, started.Run, by, "first") },
	} {
		tables := append([]string{"jobs_flow_runs", "jobs_flow_steps"}, jobsTables...)
		before := dump(t, scan, tables...)
		preview, foreseen := s.Preview(change)
		if after := dump(t, scan, tables...); after != before {
			t.Fatalf("the preview changed\n%s\ninto\n%s", before, after)
		}
		if err := change(s.Jobs); fmt.Sprint(err) != fmt.Sprint(foreseen) {
			t.Errorf("the preview says %v; then %v", foreseen, err)
		}
		if foreseen != nil {
			continue
		}
		var detail any
		if op := s.last(t, &detail); len(preview) != 1 || preview[0].Kind != op.Kind || string(preview[0].Detail) != string(op.Detail) {
			t.Errorf("foretold %+v, then %+v", preview, op)
		}
	}
}
