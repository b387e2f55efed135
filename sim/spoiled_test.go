package sim

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/oracle"
)

// spoiled makes a run in a database where a trigger breaks what the library
// relies on, and returns the findings by name.
func spoiled(t *testing.T, c Config, scenario Scenario, triggers ...string) map[string]oracle.Finding {
	t.Helper()
	on := databaseOn(t, c.URL)
	defer func() {
		if err := on.Drop(); err != nil {
			t.Error(err)
		}
	}()
	for _, trigger := range triggers {
		if _, err := on.DB.ExecContext(t.Context(), trigger); err != nil {
			t.Fatalf("%v in %s", err, trigger)
		}
	}
	r, err := run(t.Context(), c, scenario, on, nil)
	if err != nil {
		t.Fatal(err)
	}
	findings := map[string]oracle.Finding{}
	for _, f := range r.Invariants {
		findings[f.Name] = f
	}
	return findings
}

// TestBrokenGuardIsCaught takes the row's version out of the guard's comparison:
// its revision never changes, nor, as far as a view tells, its place.
func TestBrokenGuardIsCaught(t *testing.T) {
	tier.Long(t, "TestLostCommitsAreMissed; package oracle has evidence of each flaw")
	t.Parallel()
	c := small(t)
	var f oracle.Finding
	for c.Seed = 1; c.Seed <= 5; c.Seed++ { // once is enough, but chance has its part
		scenario := Draw(c)
		scenario.Knobs.MoveEvery = 200 * time.Millisecond
		f = spoiled(t, c, scenario,
			`CREATE FUNCTION keep_revision() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.revision := OLD.revision; RETURN NEW; END $$`,
			`CREATE TRIGGER keep_revision BEFORE UPDATE ON consumer_checkpoints FOR EACH ROW EXECUTE FUNCTION keep_revision()`,
			`ALTER TABLE consumer_checkpoints RENAME TO checkpoint_rows`,
			`CREATE VIEW consumer_checkpoints AS SELECT '(0,1)'::tid AS ctid, tableoid, * FROM checkpoint_rows`,
		)["exactly once"]
		if f.Broken > 0 {
			return
		}
	}
	t.Errorf("a guard that does not compare the revision went unnoticed: %+v", f)
}

// TestLostRowsAreMissed lets rows of ledger and audit vanish.
func TestLostRowsAreMissed(t *testing.T) {
	tier.Long(t, "TestLostCommitsAreMissed; package oracle has evidence without these rows")
	t.Parallel()
	c := small(t)
	missed := map[string]bool{"exactly once": true, "audit": true, "no guessing": true}
	c.Writers = 3 // with more, a busy machine has no time to catch up with a transaction that is open
	// Once is enough, but chance has its part.
	for c.Seed = 1; c.Seed <= 5 && len(missed) > 0; c.Seed, c.Duration = c.Seed+1, c.Duration*3/2 {
		scenario := Draw(c)
		k := &scenario.Knobs // open ranges are wanted, plenty of them
		k.GapPolicy, k.MaxOpenRanges, k.StaleGapThreshold, k.HarborLag = worker.GapSkipStale, 10_000, 100*time.Millisecond, 0
		k.LongestTx = 2 * c.Duration
		for _, fault := range []string{"delay", "redraw", "idle", "prepare"} {
			scenario.Faults[fault] = 5
		}
		findings := spoiled(t, c, scenario,
			`CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`,
			`CREATE TRIGGER lose_some BEFORE INSERT ON sim_ledger FOR EACH ROW WHEN (NEW.position % 50 = 0) EXECUTE FUNCTION lose()`,
			`CREATE TRIGGER lose_void BEFORE INSERT ON consumer_gap_skips FOR EACH ROW WHEN (NEW.state = 'void' AND NEW.gap_position % 7 = 0) EXECUTE FUNCTION lose()`,
			`CREATE TRIGGER lose_open BEFORE INSERT ON consumer_gap_skips FOR EACH ROW WHEN (NEW.state = 'open') EXECUTE FUNCTION lose()`,
		)
		for name := range missed {
			if findings[name].Broken > 0 {
				delete(missed, name)
			}
		}
		for _, name := range []string{"nothing else", "one at a time", "forwards", "life cycle"} {
			if f := findings[name]; f.Broken > 0 {
				t.Errorf("%q was broken, too: %+v", name, f)
			}
		}
	}
	for name := range missed {
		t.Errorf("%q was not broken", name)
	}
}

// TestResetThatKeepsOpenRangesIsCaught lets a reset go back over positions in
// doubt and leave the record that they are watched: they are applied twice.
func TestResetThatKeepsOpenRangesIsCaught(t *testing.T) {
	tier.Long(t, "TestLostCommitsAreMissed; package oracle has evidence of such a reset")
	t.Parallel()
	c := small(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1, "delay": 8, "prepare": 4, "reset": 10}
	var f oracle.Finding
	for c.Seed = 1; c.Seed <= 5; c.Seed++ { // once is enough, but chance has its part
		scenario := Draw(c)
		k := &scenario.Knobs
		k.GapPolicy, k.MaxOpenRanges, k.StaleGapThreshold = worker.GapSkipStale, 10_000, 100*time.Millisecond
		f = spoiled(t, c, scenario,
			`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`,
			`CREATE TRIGGER keep BEFORE DELETE OR UPDATE ON consumer_gap_skips FOR EACH ROW WHEN (current_setting('application_name') = 'sim harness') EXECUTE FUNCTION keep()`,
		)["exactly once"]
		if f.Broken > 0 {
			return
		}
	}
	t.Errorf("a reset that keeps open ranges went unnoticed: %+v", f)
}

// TestLostCommitsAreMissed lets the server acknowledge commits before they are
// safe, when the writers believe that they are.
func TestLostCommitsAreMissed(t *testing.T) {
	t.Parallel()
	// Nothing is flushed between a commit and a crash but by chance.
	c := mortalWith(t, map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
	c.Workers, c.Consumers, c.Duration = 1, 1, 2*time.Second // it is the writers who lose
	c.Faults = Intensities{"rollback": 1, "stale": 1, "server-crash": 30, "backend-crash": 30}
	var f oracle.Finding
	for c.Seed = 1; c.Seed <= 10; c.Seed++ { // once is enough, but chance has its part
		f = spoiled(t, c, Draw(c),
			`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`,
		)["nothing else"]
		if f.Broken > 0 {
			return
		}
	}
	t.Errorf("commits that were acknowledged and lost went unnoticed: %+v", f)
}
