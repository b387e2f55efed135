package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// move is one step of a script: a writer and two operators act at once.
type move struct {
	write     int // index of writes
	operate   [2]int
	amount    int  // of events
	where     int  // which of the possible positions, in percent
	settle    bool // raise the settled row afterwards
	changeOwn bool // stop the first worker; another runs already
}

// writes and operations are the steps of scripts. An operation that comes too late is refused,
// and the script goes on.
var (
	writes = []string{"append", "append", "roll back", "hold", "hold long", "hold long", "commit held", "commit held and skip", "roll back held"}
	deeds  = []string{"nothing", "reset back", "back and forth", "skip", "skip late", "skip anything", "pause or resume", "letters"}
)

// TestScripts plays random scripts of writers and operators beside running workers. At the end,
// it reads the journal of all changes of the checkpoint. Every event must have been handled
// once for each pass of the consumer, or skipped by a recorded operation. A longer search:
//
//	go test -run TestScripts ./ops -rapid.checks=500
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, seen := 0, map[string]int{}
	moves := rapid.Custom(func(t *rapid.T) move {
		below := func(n int, what string) int { return evenly(t, n, what) }
		return move{
			write: below(len(writes), "write"), operate: [2]int{below(len(deeds), "one"), below(len(deeds), "two")},
			amount: 1 + below(4, "amount"), where: below(101, "where"),
			settle: rapid.Bool().Draw(t, "settle"), changeOwn: below(10, "change of owner") == 9,
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(moves, 5, 40).Draw(rt, "script")
		batchSize := rapid.SampledFrom([]int{1, 3, 100}).Draw(rt, "batch size")
		scripts++
		ok := t.Run("script", func(t *testing.T) { play(t, script, batchSize, seen) })
		if !ok {
			rt.FailNow()
		}
	})
	t.Logf("in %d scripts: %v", scripts, seen)
	expected := map[int][]string{ // by how many scripts it must have come up
		20:  {"batch", "reset back", "skip", "pause", "resume", "discard", "refused", "late", "again"},
		100: {"reset forward", "events crossed", "void crossed", "open forgotten", "skip late"},
	}
	for enough, all := range expected {
		for _, what := range all {
			if scripts >= enough && seen[what] == 0 {
				t.Errorf("in %d scripts it never came to %q", scripts, what)
			}
		}
	}
}

// evenly draws a number below n with equal probability. The ranges of rapid prefer their ends.
func evenly(t *rapid.T, n int, what string) (drawn int) {
	for _, bit := range rapid.SliceOfN(rapid.Bool(), 10, 10).Draw(t, what) {
		drawn <<= 1
		if bit {
			drawn++
		}
	}
	return drawn * n >> 10
}

// stage is the database and the workers of a script.
type stage struct {
	site
	held  []held
	stale sync.Map // the virtual transactions that were reported as stale
	mu    sync.Mutex
	seen  map[string]int
}

// held is an open transaction, and the lowest position that it drew.
type held struct {
	tx    *sql.Tx
	first int64
}

func play(t *testing.T, script []move, batchSize int, seen map[string]int) {
	s := &stage{site: newSite(t), seen: seen}
	s.keepJournal(t)
	observer := worker.WithObserver(observe.On(func(b observe.FrontierBlocked) { s.stale.Store(b.VirtualTransaction, true) }))
	first := s.work(t, &ledger{}, observer, worker.WithBatchSize(batchSize))
	s.work(t, &ledger{}, observer, worker.WithBatchSize(batchSize+1))
	await(t, "the consumer to have a checkpoint", func() bool { return s.count(t, `SELECT count(*) FROM consumer_checkpoints`) == 1 })
	for i, m := range script {
		var all sync.WaitGroup
		for _, deed := range m.operate {
			all.Go(func() {
				if err := s.operate(deeds[deed], m.where); err != nil {
					t.Errorf("move %d: %s: %v", i, deeds[deed], err)
				}
			})
		}
		s.write(t, writes[m.write], i, m.amount)
		all.Wait()
		if m.settle {
			s.settleNow(t)
		}
		if m.changeOwn {
			first()
		}
	}
	s.finish(t)
	s.judge(t)
}

func (s *stage) write(t *testing.T, what string, move, amount int) {
	switch what {
	case "append":
		s.append(t, fmt.Sprint("aggregate ", move%3), amount)
	case "roll back":
		s.burn(t, amount)
	case "hold", "hold long":
		if len(s.held) < 4 {
			s.hold(t, fmt.Sprint("held ", move), amount, what == "hold long")
		}
	default:
		if n := len(s.held); n > 0 {
			h := s.held[move%n]
			s.held = slices.Delete(s.held, move%n, move%n+1)
			switch what {
			case "roll back held":
				end(t, h.tx.Rollback)
			case "commit held":
				end(t, h.tx.Commit)
			default:
				s.commitAndSkip(t, h)
			}
		}
	}
}

// commitAndSkip skips an event before a worker can deliver it. The consumer is paused, and the
// skip is first in the lock queue of the checkpoint when the event appears.
func (s *stage) commitAndSkip(t *testing.T, h held) {
	if err := s.tally(s.Pause(t.Context(), "c", by)); err != nil {
		t.Fatal(err)
	}
	row, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := row.Exec(`SELECT FROM consumer_checkpoints FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	skipped := make(chan error, 1)
	go func() { skipped <- s.tally(s.SkipEvent(context.Background(), "c", h.first, by)) }()
	await(t, "the skip to wait for the row", func() bool {
		return s.count(t, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND NOT granted`) > 0
	})
	end(t, h.tx.Commit)
	end(t, row.Rollback)
	if err := errors.Join(<-skipped, s.tally(s.Resume(t.Context(), "c", by))); err != nil {
		t.Error(err)
	}
}

// hold begins a transaction that stays open. If long is set, hold waits until the workers have
// passed its positions.
func (s *stage) hold(t *testing.T, aggregate string, amount int, long bool) {
	h := held{tx: s.begin(t, aggregate, amount)}
	if err := h.tx.QueryRow(`SELECT min(global_position) FROM events WHERE aggregate_id = $1::text`, aggregate).Scan(&h.first); err != nil {
		t.Fatal(err)
	}
	s.held = append(s.held, h)
	if long {
		var id string
		if err := h.tx.QueryRow(`SELECT virtualtransaction FROM pg_locks WHERE locktype = 'virtualxid' AND pid = pg_backend_pid()`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		s.append(t, "after "+aggregate, 1)
		await(t, "a worker to report the open transaction", func() bool {
			_, reported := s.stale.Load(id)
			return reported
		})
	}
}

// settleNow raises the settled row as far as it is correct. No transaction draws a position
// meanwhile.
func (s *stage) settleNow(t *testing.T) {
	settled := s.count(t, `SELECT coalesce(max(global_position), 0) FROM events`)
	for _, h := range s.held {
		settled = min(settled, h.first-1)
	}
	s.settle(t, max(settled, s.count(t, `SELECT coalesce(max(settled), 0) FROM consumer_checkpoints_settled`)))
}

// operate runs an operation that is possible at the moment of the choice.
func (s *stage) operate(what string, percent int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var at, settled, next, late int64
	var paused bool
	if err := s.DB.QueryRowContext(ctx, `
		SELECT last_position, paused_at IS NOT NULL, (SELECT coalesce(max(settled), 0) FROM consumer_checkpoints_settled),
			(SELECT coalesce(min(global_position), 0) FROM events WHERE global_position > last_position),
			(SELECT coalesce(min(global_position), 0) FROM events JOIN consumer_gap_skips ON state = 'open' AND global_position BETWEEN gap_position AND gap_end)
		FROM consumer_checkpoints`).Scan(&at, &paused, &settled, &next, &late); err != nil {
		return err
	}
	switch what {
	case "reset back":
		return s.tally(s.Reset(ctx, "c", at*int64(percent)/101, by))
	case "back and forth": // the worker may be faster
		to := at * int64(percent) / 101
		return errors.Join(s.tally(s.Reset(ctx, "c", to, by)), s.tally(s.Reset(ctx, "c", settled-(settled-to)*int64(percent)/202, by)))
	case "skip":
		return s.skip(ctx, next)
	case "skip late":
		return s.skip(ctx, late)
	case "skip anything":
		return s.skip(ctx, at*int64(percent)/50)
	case "pause or resume":
		if paused {
			return s.tally(s.Resume(ctx, "c", by))
		}
		return s.tally(s.Pause(ctx, "c", by))
	case "letters":
		return s.discardMissing(ctx, at*int64(percent)/100)
	}
	return nil
}

// skip pauses the consumer, and skips an event that has not failed.
func (s *stage) skip(ctx context.Context, position int64) error {
	if err := s.tally(s.Pause(ctx, "c", by)); err != nil {
		return err
	}
	return errors.Join(s.tally(s.SkipEvent(ctx, "c", position, by)), s.tally(s.Resume(ctx, "c", by)))
}

// discardMissing creates a dead letter without an event, and discards it.
func (s *stage) discardMissing(ctx context.Context, position int64) error {
	position = -1 - position
	_, err := s.DB.ExecContext(ctx, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		VALUES ('c', $1::bigint, 'None', 'none', gen_random_uuid(), 'None', 1) ON CONFLICT DO NOTHING`, position)
	if err != nil {
		return err
	}
	return s.tally(s.DiscardDeadLetter(ctx, "c", position, by))
}

// tally returns only unexpected errors.
func (s *stage) tally(err error) error {
	var notNext *ops.NotNextError
	var notStuck *ops.NotStuckError // another operation has resumed it
	var beyond *ops.NotSettledError
	if err == nil {
		return nil
	}
	for _, refusal := range []error{ops.ErrAtPosition, ops.ErrPaused, ops.ErrNotPaused, ops.ErrNoDeadLetter} {
		if errors.Is(err, refusal) {
			err = nil
		}
	}
	if err == nil || errors.As(err, &notNext) || errors.As(err, &notStuck) || errors.As(err, &beyond) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen["refused"]++
		return nil
	}
	return err
}

// finish ends open transactions and waits until the consumer is idle.
func (s *stage) finish(t *testing.T) {
	for i, h := range s.held {
		if i%2 == 0 {
			end(t, h.tx.Commit)
		} else {
			end(t, h.tx.Rollback)
		}
	}
	s.Exec(t, `DELETE FROM consumer_dead_letters`)
	if err := s.Resume(t.Context(), "c", by); err != nil && !errors.Is(err, ops.ErrNotPaused) {
		t.Fatal(err)
	}
	s.append(t, "last", 1)
	s.awaitCheckpoint(t, s.count(t, `SELECT max(global_position) FROM events`))
	await(t, "no position to be open", func() bool { return s.spans(t, "open") == "" })
}
