package e2e

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// lines is a logger that keeps what it is told.
type lines struct {
	store.NoOpLogger
	mu  sync.Mutex
	all []string
}

func (l *lines) Info(_ context.Context, msg string, kv ...any)  { l.add(msg, kv) }
func (l *lines) Error(_ context.Context, msg string, kv ...any) { l.add(msg, kv) }

func (l *lines) add(msg string, kv []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, msg+" "+strings.TrimSpace(fmt.Sprintln(kv...)))
}

// with returns the lines that contain a text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Whose transaction it is that stays open, and what to do about it, is said by
// the log, by the observer and, until it ends, by Status; whatever is done with
// the events behind it.
func TestWhoHoldsTheFrontierBackIsNamed(t *testing.T) {
	t.Parallel()
	for policy, message := range map[worker.GapPolicy]string{
		worker.GapSkipStale: "transaction stays open passed true",
		worker.GapWait:      "transaction stays open passed false",
	} {
		t.Run(string(policy), func(t *testing.T) {
			d := newLog(t)
			cfg, err := pgx.ParseConfig(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			cfg.RuntimeParams["application_name"] = "slow import"
			importer := stdlib.OpenDB(*cfg)
			defer importer.Close()
			open := beginAppend(t, importer, "Order", "late", 1) // 1
			appendN(t, d.DB, "Order", "2", 1)                    // 2
			var pid int
			if err := open.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			var log lines
			told := make(chan observe.BlockingTransaction, 10)
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(stale), worker.WithGapPolicy(policy),
				worker.WithLogger(&log), worker.WithObserver(observe.On(func(b observe.FrontierBlocked) { told <- b.BlockingTransaction })))
			check := func(who string, b observe.BlockingTransaction) {
				t.Helper()
				if b.PID != pid || b.ApplicationName != "slow import" || b.State != "idle in transaction" || b.Age < stale || !b.Stale {
					t.Errorf("%s shows %+v, want the importer with pid %d", who, b, pid)
				}
			}
			select {
			case b := <-told:
				check("the observer", b)
			case <-time.After(pgtest.Patience):
				t.Fatal("waited in vain for the observer to be told of the transaction")
			}
			if b := w.Status().Blocked; len(b) != 1 {
				t.Errorf("Status shows %+v, want one transaction", b)
			} else {
				check("Status", b[0])
			}
			await(t, "the log to name the transaction", func() bool { return len(log.with(message)) > 0 })
			for _, want := range []string{fmt.Sprintf("pid %d ", pid), "application_name slow import", fmt.Sprintf("pg_terminate_backend(%d)", pid)} {
				if line := log.with(message)[0]; !strings.Contains(line, want) {
					t.Errorf("the log says %q, which lacks %q", line, want)
				}
			}
			if err := open.Commit(); err != nil {
				t.Fatal(err)
			}
			await(t, "everything to be handled", func() bool { return len(handled(t, d.DB, "all")) == 2 })
			await(t, "Status to show nobody any more", func() bool { return len(w.Status().Blocked) == 0 })
			if n := len(log.with(message)); n != 1 || len(told) > 0 {
				t.Errorf("the log told of the transaction %d times, the observer %d times, want once", n, 1+len(told))
			}
		})
	}
}

// Beside a doubt, consumers stay behind the head as far as they are told to;
// without one, they do not.
func TestStaleGapHarborLag(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	appendN(t, d.DB, "Order", "2", 4)                // 2 to 5
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(stale), worker.WithStaleGapHarborLag(2))
	awaitHandled(t, d.DB, "all", 2, 3)
	var to, visible int64
	if err := d.DB.QueryRow(`SELECT skip_to_position, highest_visible_position FROM consumer_gap_skips WHERE gap_position = 1`).Scan(&to, &visible); err != nil || to != 3 || visible != 5 {
		t.Errorf("the audit says that the consumer went to %d while %d was visible, %v; want 3 and 5", to, visible, err)
	}
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "all", 2, 3, 4, 5)
}

// A proof whose ground is altered while the worker runs is none: nothing new is
// handled until it is put right, and Status and the observer say what and how.
func TestFrontierThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	told := make(chan error, 100)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithObserver(observe.On(func(e observe.FrontierFailed) { err := e.Err; told <- err })))
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "all", 1)
	if err := w.Status().FrontierError; err != nil {
		t.Fatalf("nothing is wrong, and Status says %v", err)
	}

	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	appendN(t, d.DB, "Order", "1", 1)
	namesCache := func(err error) bool {
		var setup *worker.SetupError
		return errors.As(err, &setup) && strings.HasPrefix(setup.Remedy, "ALTER SEQUENCE public.events_global_position_seq CACHE 1")
	}
	await(t, "Status to say what is wrong", func() bool { return namesCache(w.Status().FrontierError) })
	for deadline, err := time.After(pgtest.Patience), error(nil); !namesCache(err); {
		select {
		case err = <-told:
		case <-deadline:
			t.Fatalf("waited in vain for the observer to be told what is wrong, the last was %v", err)
		}
	}

	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	await(t, "both events to be handled", func() bool { return len(handled(t, d.DB, "all")) == 2 })
	await(t, "Status to say that nothing is wrong", func() bool { return w.Status().FrontierError == nil })
}

// A role that may not see what others do takes every later gap for one that an
// idle transaction may fill; one with pg_read_all_stats does not.
func TestRoleThatSeesIdlenessHasFewDoubts(t *testing.T) {
	for may, want := range map[bool]int64{false: 6, true: 1} {
		d := newLog(t)
		role := fmt.Sprintf("r_%s", strings.ToLower(rand.Text()))
		d.Exec(t, `CREATE ROLE `+role)
		t.Cleanup(func() {
			for _, s := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
				if _, err := d.DB.ExecContext(context.WithoutCancel(t.Context()), s); err != nil {
					t.Error(err)
				}
			}
		})
		d.Exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
		d.Exec(t, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role)
		if may {
			d.Exec(t, `GRANT pg_read_all_stats TO `+role)
		}
		cfg, err := pgx.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeParams["role"] = role
		db := stdlib.OpenDB(*cfg)
		t.Cleanup(func() { db.Close() })

		idle := beginAppend(t, d.DB, "Order", "idle", 1) // 1
		appendN(t, d.DB, "Order", "other", 1)            // 2
		start(t, db, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(stale))
		awaitHandled(t, d.DB, "all", 2)
		for n := range 5 {
			if err := beginAppend(t, d.DB, "Order", "gone", 1).Rollback(); err != nil {
				t.Fatal(err)
			}
			appendN(t, d.DB, "Order", "other", 1)
			await(t, "what comes behind the gap", func() bool { return len(handled(t, d.DB, "all")) == n+2 })
		}
		await(t, fmt.Sprintf("%d positions to be in doubt (pg_read_all_stats: %v)", want, may), func() bool { return audit(t, d.DB, "open")["all"] == want })
		if err := idle.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// What is drawn and rolled back beside a transaction that stays open, and runs
// nothing meanwhile, does not count as its own, however it stays open. Otherwise
// each rollback would open a position, until the consumer may have no more.
func TestOpenTransactionOwnsNothingThatIsDrawnWhileItRests(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]func(t *testing.T, d *pgtest.Database, tx *sql.Tx){
		"idle": func(*testing.T, *pgtest.Database, *sql.Tx) {},
		"prepared": func(t *testing.T, d *pgtest.Database, tx *sql.Tx) {
			if _, err := tx.Exec(`PREPARE TRANSACTION 'rest'`); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Exec(t, `ROLLBACK PREPARED 'rest'`) })
		},
		"aborted to a savepoint": func(t *testing.T, _ *pgtest.Database, tx *sql.Tx) {
			if _, err := tx.Exec(`SAVEPOINT s`); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`SELECT 1/0`); err == nil {
				t.Fatal("a division by zero has a result")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			tx := beginAppend(t, d.DB, "Order", "open", 1) // 1
			t.Cleanup(func() { _ = tx.Rollback() })
			rest(t, d, tx)
			appendN(t, d.DB, "Order", "other", 1) // 2
			start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(stale), worker.WithMaxOpenRanges(20))
			awaitHandled(t, d.DB, "all", 2)
			for n := range 40 {
				if err := beginAppend(t, d.DB, "Order", "gone", 1).Rollback(); err != nil {
					t.Fatal(err)
				}
				appendN(t, d.DB, "Order", "other", 1)
				await(t, fmt.Sprintf("what comes behind rollback %d", n+1), func() bool { return len(handled(t, d.DB, "all")) == n+2 })
			}
			if open := audit(t, d.DB, "open")["all"]; open > 3 {
				t.Errorf("%d positions are open, want only what was drawn before the transaction rested", open)
			}
		})
	}
}
