package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/ops"
)

// splitSite returns the consumer "c" in two units. The units are at positions 3 and 5, each
// with a dead letter of one of its aggregates.
func splitSite(t *testing.T, key string) (s site, low, high string) {
	s = newSite(t)
	for i := 0; low == "" || high == ""; i++ {
		id := fmt.Sprint("a", i)
		switch slot := partition.Slot(id); {
		case slot < 0x800 && low == "":
			low = id
		case slot >= 0x800 && high == "":
			high = id
		}
	}
	s.append(t, low, 4)
	s.append(t, high, 4)
	s.settle(t, 8)
	s.place(t, 2)
	s.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now(), paused_by = 'partitions', paused_reason = 'split'`)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, partition_key) VALUES ('c#000-7ff', 3, $1), ('c#800-fff', 5, $1)`, key)
	s.deadLetter(t, 1, low, 1)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#000-7ff'`)
	return s, low, high
}

// stands returns the units as text: position, revision and whether they are paused.
func (s site) stands(t *testing.T) string {
	t.Helper()
	var text string
	if err := s.DB.QueryRowContext(t.Context(), `
SELECT string_agg(substr(consumer_name, 3, 1) || ':' || last_position || '.' || revision || CASE WHEN paused_at IS NULL THEN '' ELSE 'p' END, ' ' ORDER BY consumer_name COLLATE "C")
FROM consumer_checkpoints WHERE split_at IS NULL`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestOperationsOnUnits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(o *ops.Operator, low, high string) error
		want string // 0:3.0 8:5.0 before
		err  error
	}{
		"pause":            {func(o *ops.Operator, _, _ string) error { return o.Pause(t.Context(), "c", by) }, "0:3.1p 8:5.1p", nil},
		"pause one":        {func(o *ops.Operator, _, _ string) error { return o.Pause(t.Context(), "c#800-fff", by) }, "0:3.0 8:5.1p", nil},
		"pause what isn't": {func(o *ops.Operator, _, _ string) error { return o.Pause(t.Context(), "c#000-fff", by) }, "0:3.0 8:5.0", ops.ErrNoCheckpoint},
		"pause the rest": {func(o *ops.Operator, _, _ string) error {
			return errors.Join(o.Pause(t.Context(), "c#800-fff", by), o.Pause(t.Context(), "c", by))
		}, "0:3.1p 8:5.1p", nil},
		"pause twice": {func(o *ops.Operator, _, _ string) error {
			return errors.Join(o.Pause(t.Context(), "c", by), o.Pause(t.Context(), "c", by))
		}, "0:3.1p 8:5.1p", ops.ErrPaused},
		"resume": {func(o *ops.Operator, _, _ string) error {
			return errors.Join(o.Pause(t.Context(), "c", by), o.Resume(t.Context(), "c", by))
		}, "0:3.2 8:5.2", nil},
		"resume what runs":     {func(o *ops.Operator, _, _ string) error { return o.Resume(t.Context(), "c", by) }, "0:3.0 8:5.0", ops.ErrNotPaused},
		"reset back":           {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", 1, by) }, "0:1.1 8:1.1", nil},
		"reset back in part":   {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", 4, by) }, "0:3.0 8:4.1", nil},
		"reset to the first":   {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", 3, by) }, "0:3.0 8:3.1", nil},
		"reset to the last":    {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", 5, by) }, "0:3.0 8:5.0", ops.ErrAtPosition},
		"reset forward":        {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", 8, by) }, "0:8.1 8:8.1", nil},
		"reset one back":       {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c#800-fff", 1, by) }, "0:3.0 8:1.1", nil},
		"reset one forward":    {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c#000-7ff", 4, by) }, "0:4.1 8:5.0", nil},
		"reset below":          {func(o *ops.Operator, _, _ string) error { return o.Reset(t.Context(), "c", -1, by) }, "0:3.0 8:5.0", ops.ErrInvalid},
		"skip of the low unit": {func(o *ops.Operator, _, _ string) error { return o.SkipEvent(t.Context(), "c", 4, by) }, "0:4.1 8:5.0", nil},
		"skip of the high":     {func(o *ops.Operator, _, _ string) error { return o.SkipEvent(t.Context(), "c", 6, by) }, "0:3.0 8:6.1", nil},
		"skip of one unit":     {func(o *ops.Operator, _, _ string) error { return o.SkipEvent(t.Context(), "c#800-fff", 6, by) }, "0:3.0 8:6.1", nil},
		"retry":                {func(o *ops.Operator, _, _ string) error { return o.RetryDeadLetters(t.Context(), "c", 1, by) }, "0:3.1 8:5.0", nil},
		"discard":              {func(o *ops.Operator, _, _ string) error { return o.DiscardDeadLetter(t.Context(), "c", 1, by) }, "0:3.1 8:5.0", nil},
		"discard what isn't":   {func(o *ops.Operator, _, _ string) error { return o.DiscardDeadLetter(t.Context(), "c", 2, by) }, "0:3.0 8:5.0", ops.ErrNoDeadLetter},
		"replay":               {func(o *ops.Operator, low, _ string) error { return o.Replay(t.Context(), "c", "Order", low, by) }, "0:3.1 8:5.0", nil},
		"replay of the high":   {func(o *ops.Operator, _, high string) error { return o.Replay(t.Context(), "c", "Order", high, by) }, "0:3.0 8:5.1", nil},
		"replay in its unit": {func(o *ops.Operator, low, _ string) error {
			return o.Replay(t.Context(), "c#000-7ff", "Order", low, by)
		}, "0:3.1 8:5.0", nil},
		"replay in another": {func(o *ops.Operator, low, _ string) error {
			return o.Replay(t.Context(), "c#800-fff", "Order", low, by)
		}, "0:3.0 8:5.0", ops.ErrInvalid},
		"fix":             {func(o *ops.Operator, _, _ string) error { return o.Partition(t.Context(), "c", 4, by) }, "0:3.0 8:5.0", nil},
		"fix too many":    {func(o *ops.Operator, _, _ string) error { return o.Partition(t.Context(), "c", 257, by) }, "0:3.0 8:5.0", ops.ErrInvalid},
		"fix one unit":    {func(o *ops.Operator, _, _ string) error { return o.Partition(t.Context(), "c#000-7ff", 2, by) }, "0:3.0 8:5.0", ops.ErrInvalid},
		"retire one unit": {func(o *ops.Operator, _, _ string) error { return o.Retire(t.Context(), "c#000-7ff", by) }, "0:3.0 8:5.0", ops.ErrInvalid},
		"letters of one unit": {func(o *ops.Operator, _, _ string) error {
			_, err := o.DeadLetters(t.Context(), "c#000-7ff")
			return err
		}, "0:3.0 8:5.0", ops.ErrInvalid},
		"fix for nothing": {func(o *ops.Operator, _, _ string) error {
			return o.Partition(t.Context(), "c", 4, ops.By{Operator: "ann"})
		}, "0:3.0 8:5.0", ops.ErrInvalid},
		"retire for nothing": {func(o *ops.Operator, _, _ string) error { return o.Retire(t.Context(), "c", ops.By{Operator: "ann"}) }, "0:3.0 8:5.0", ops.ErrInvalid},
		"fix of nobody":      {func(o *ops.Operator, _, _ string) error { return o.Partition(t.Context(), "d", 2, by) }, "0:3.0 8:5.0", ops.ErrNoCheckpoint},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, low, high := splitSite(t, "")
			if err := c.do(s.Operator, low, high); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if got := s.stands(t); got != c.want {
				t.Errorf("the units are %s, want %s", got, c.want)
			}
		})
	}
}

// Operations on a consumer do not change another consumer with a similar name, the same units,
// and rows at the same positions.
func TestOperationsChangeOneConsumerOnly(t *testing.T) {
	t.Parallel()
	s, low, _ := splitSite(t, "")
	s.deadLetter(t, 2, low, 1)
	s.deadLetter(t, 3, low, 1)
	s.open(t, 2, 2)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT consumer_name, gen_random_uuid() FROM consumer_checkpoints`)
	others := map[string]string{ // columns that both have
		"consumer_checkpoints":  "last_position, partition_key, split_at, paused_at, paused_by, paused_reason",
		"consumer_assignments":  "worker_id",
		"consumer_gap_skips":    "worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position",
		"consumer_dead_letters": "global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts",
	}
	stay := []string{"(SELECT 1)"}
	for table, columns := range others {
		s.Exec(t, `UPDATE `+table+` SET consumer_name = CASE WHEN consumer_name = 'c' AND '`+table+`' IN ('consumer_gap_skips', 'consumer_dead_letters') THEN 'c_1#000-7ff' ELSE replace(consumer_name, 'c', 'c_1') END`)
		s.Exec(t, `INSERT INTO `+table+` (consumer_name, `+columns+`) SELECT replace(consumer_name, '_', 'x'), `+columns+` FROM `+table)
		stay = append(stay, `(SELECT * FROM `+table+` WHERE consumer_name LIKE 'cx1%')`)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name LIKE 'cx1%'`)
	ctx, scan := t.Context(), func(query string, into ...any) { s.scan(t, query, into...) }
	before := dump(t, scan, stay...)
	for i, change := range []func() error{
		func() error { return s.Pause(ctx, "c_1", by) },
		func() error { return s.Resume(ctx, "c_1", by) },
		func() error { return s.RetryDeadLetters(ctx, "c_1", 1, by) },
		func() error { return s.DiscardDeadLetter(ctx, "c_1", 1, by) },
		func() error { _, err := s.RetryDeadLettersWhere(ctx, "c_1", ops.DeadLetterFilter{}, 1, by); return err },
		func() error {
			_, err := s.DiscardDeadLettersWhere(ctx, "c_1", ops.DeadLetterFilter{}, 1, by)
			return err
		},
		func() error { return s.SkipEvent(ctx, "c_1", 2, by) },
		func() error { return s.Replay(ctx, "c_1", "Order", low, by) },
		func() error { return s.Reset(ctx, "c_1", 8, by) },
		func() error { return s.Reset(ctx, "c_1", 1, by) },
		func() error { return s.Partition(ctx, "c_1", 4, by) },
		func() error { return s.Rename(ctx, "c_1", "c_2", by) },
		func() error { return s.Retire(ctx, "c_1", by) },
		func() error { return s.Rename(ctx, "c_2", "c_1", by) },
		func() error { return s.Retire(ctx, "c_1", by) },
	} {
		if err := change(); err != nil {
			t.Errorf("change %d: %v", i, err)
		}
		if after := dump(t, scan, stay...); after != before {
			t.Fatalf("change %d made\n%s\nof\n%s", i, after, before)
		}
	}
	for table := range others {
		if n := s.count(t, `SELECT count(*) FROM `+table+` WHERE split_part(consumer_name, '#', 1) = 'c_1'`); n > 0 {
			t.Errorf("once it is retired, %s has %d rows of it", table, n)
		}
	}
}

// Consumers shows a split consumer with all dead letters of its units. It is paused if all
// units are paused, and has a worker if one worker has all units.
func TestSplitConsumerHasDeadLettersOfUnits(t *testing.T) {
	t.Parallel()
	s, _, high := splitSite(t, "")
	s.deadLetter(t, 5, high, 1)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#800-fff' WHERE consumer_name = 'c'`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT consumer_name, $1 FROM consumer_checkpoints WHERE split_at IS NULL`, uuid.Max)
	expect := func(paused bool, worker uuid.UUID) {
		t.Helper()
		all, err := s.Consumers(t.Context())
		if err != nil || len(all) != 1 || all[0].DeadLetters != 2 || (all[0].Paused != nil) != paused || all[0].Worker != worker {
			t.Errorf("%+v, %v", all, err)
		}
	}
	expect(false, uuid.Max)
	if err := s.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `UPDATE consumer_assignments SET worker_id = gen_random_uuid() WHERE consumer_name = 'c#800-fff'`)
	expect(true, uuid.Nil)
}

// A reset that waits for a split changes the new units, not the replaced ones.
func TestResetWaitsForASplit(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "")
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, statement := range []string{
		`SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`,
		`SELECT FROM consumer_checkpoints WHERE consumer_name = 'c#800-fff' FOR UPDATE`,
		`INSERT INTO consumer_checkpoints (consumer_name, last_position, revision) VALUES ('c#800-bff', 5, 1), ('c#c00-fff', 5, 1)`,
		`DELETE FROM consumer_checkpoints WHERE consumer_name = 'c#800-fff'`,
	} {
		if _, err := tx.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- s.Reset(context.WithoutCancel(t.Context()), "c", 1, by) }()
	pgtest.AwaitBlocked(t, s.DB)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := s.stands(t); got != "0:1.1 8:1.2 c:1.2" {
		t.Errorf("the units are %s", got)
	}
}

// An operation waits for the batch of a unit, and starts from the position after the batch.
func TestResetWaitsForTheBatchOfAUnit(t *testing.T) {
	t.Parallel()
	s, low, _ := splitSite(t, "")
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE consumer_checkpoints SET last_position = 7, revision = revision + 1 WHERE consumer_name = 'c#000-7ff'`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		VALUES ('c#000-7ff', 6, 'Order', $1, gen_random_uuid(), 'Happened', 'boom', 1)`, low); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Reset(context.WithoutCancel(t.Context()), "c", 4, by) }()
	pgtest.AwaitBlocked(t, s.DB)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, deadLetters := s.stands(t), s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE global_position > 4`); got != "0:4.2 8:4.1" || deadLetters > 0 {
		t.Errorf("the units are %s, with %d dead letters above", got, deadLetters)
	}
}

// A consumer is paused if all of its units are. It has a worker if one worker has all of its
// units.
func TestConsumerIsPausedIfAllUnitsAre(t *testing.T) {
	t.Parallel()
	s, _, high := splitSite(t, "")
	s.deadLetter(t, 5, high, 1)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#800-fff' WHERE consumer_name = 'c'`)
	one, two := uuid.New(), uuid.New()
	for _, c := range []struct {
		paused     string // units, in SQL
		low, high  uuid.UUID
		wantPaused bool
		wantWorker uuid.UUID
	}{
		{`'c#000-7ff'`, one, two, false, uuid.Nil},
		{`'c#800-fff'`, two, two, false, two},
		{`'c#000-7ff', 'c#800-fff'`, one, uuid.Nil, true, uuid.Nil},
	} {
		s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = CASE WHEN consumer_name IN (`+c.paused+`) THEN now() END, paused_by = 'ann', paused_reason = 'r' WHERE split_at IS NULL`)
		s.Exec(t, `DELETE FROM consumer_assignments`)
		s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT * FROM (VALUES ('c#000-7ff', $1::uuid), ('c#800-fff', $2::uuid)) AS a(unit, worker) WHERE worker <> $3::uuid`, c.low, c.high, uuid.Nil)
		all, err := s.Consumers(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		if got := all[0]; (got.Paused != nil) != c.wantPaused || got.Worker != c.wantWorker || got.DeadLetters != 2 {
			t.Errorf("with %s paused, it is paused: %+v, of worker %v, and has %d dead letters", c.paused, got.Paused, got.Worker, got.DeadLetters)
		}
	}
}

// Names that contain SQL wildcards match one consumer only.
func TestUnitsOfNamesWithWildcards(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, split_at, paused_at) VALUES ('a_c', now(), now()), ('abc', now(), now())`)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('a_c#000-7ff'), ('a_c#800-fff'), ('abc#000-7ff'), ('abc#800-fff')`)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT consumer_name, gen_random_uuid(), 1, 1, 1, 'open', 1, 1 FROM consumer_checkpoints`)
	if err := s.Pause(t.Context(), "a_c", by); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name LIKE 'abc#%' AND paused_at IS NULL AND revision = 0`); n != 2 {
		t.Errorf("%d units of the other consumer run", n)
	}
	if err := s.Retire(t.Context(), "a_c", by); err != nil {
		t.Fatal(err)
	}
	if checkpoints, audit := s.count(t, `SELECT count(*) FROM consumer_checkpoints`), s.count(t, `SELECT count(*) FROM consumer_gap_skips`); checkpoints != 3 || audit != 3 {
		t.Errorf("%d checkpoints and %d rows of the audit are left, want those of the other", checkpoints, audit)
	}
}

func TestSkipNeedsUnitWithOwnKey(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "customer")
	if err := s.SkipEvent(t.Context(), "c", 4, by); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), "customer") {
		t.Errorf("%v", err)
	}
	if err := s.SkipEvent(t.Context(), "c#000-7ff", 4, by); err != nil {
		t.Error(err)
	}
}

func TestConsumersSumUpTheirUnits(t *testing.T) {
	t.Parallel()
	s, low, _ := splitSite(t, "")
	if err := errors.Join(s.Partition(t.Context(), "c", 4, by), s.Pause(t.Context(), "c#800-fff", by)); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c!'), ('cc'), ('b')`)
	all, err := s.Consumers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"b", "c", "c!", "cc"}) {
		t.Fatalf("%q", names)
	}
	c := all[1]
	if c.Position != 3 || c.HeadLag != 5 || c.Paused != nil || c.DeadLetters != 1 || c.Fixed != 4 || len(c.Units) != 2 || c.Units[1].Name != "c#800-fff" || c.Units[1].Paused == nil || c.Units[0].Partition != "000-7ff" {
		t.Errorf("%+v", c)
	}
	deadLetters, err := s.DeadLetters(t.Context(), "c")
	if err != nil || len(deadLetters) != 1 || deadLetters[0].Consumer != "c" || deadLetters[0].Partition != "000-7ff" || deadLetters[0].AggregateID != low {
		t.Errorf("%+v, %v", deadLetters, err)
	}
	done, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 10)
	if err != nil || len(done) != 2 || done[0].Consumer != "c#800-fff" || done[1].Kind != ops.KindPartition {
		t.Errorf("%+v, %v", done, err)
	}
	if err := s.Partition(t.Context(), "c", 0, by); err != nil {
		t.Error(err)
	}
	s.Exec(t, `DELETE FROM worker_nodes`)
	if err := s.Retire(t.Context(), "c", by); err != nil {
		t.Error(err)
	}
	for _, table := range []string{"consumer_checkpoints", "consumer_dead_letters", "consumer_assignments"} {
		var n int
		if err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table+` WHERE consumer_name = 'c' OR consumer_name LIKE 'c#%'`).Scan(&n); err != nil || n > 0 {
			t.Errorf("%s has %d rows of it: %v", table, n, err)
		}
	}
}
