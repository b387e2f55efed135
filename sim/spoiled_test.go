package sim

import (
	"testing"
	"time"
)

// spoiled makes a run in a database where a trigger breaks what the library
// relies on, and returns the findings by name.
func spoiled(t *testing.T, c Config, triggers ...string) map[string]Finding {
	t.Helper()
	on, err := createDatabase(t.Context(), c.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := on.drop(); err != nil {
			t.Error(err)
		}
	}()
	for _, trigger := range triggers {
		if _, err := on.db.ExecContext(t.Context(), trigger); err != nil {
			t.Fatalf("%v in %s", err, trigger)
		}
	}
	r, err := run(t.Context(), c, on)
	if err != nil {
		t.Fatal(err)
	}
	findings := map[string]Finding{}
	for _, f := range r.Invariants {
		findings[f.Name] = f
	}
	return findings
}

// TestBrokenGuardIsCaught takes the revision out of the guard's comparison: it
// never changes, so it is always the one that was loaded.
func TestBrokenGuardIsCaught(t *testing.T) {
	c := small(t)
	c.Workers, c.Consumers = 4, 4
	var f Finding
	for tries := 0; tries < 5; c.Seed++ { // once is enough, but chance has its part
		if Draw(c).Knobs.Flap > time.Second {
			continue // consumers are to move often
		}
		tries++
		f = spoiled(t, c,
			`CREATE FUNCTION keep_revision() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.revision := OLD.revision; RETURN NEW; END $$`,
			`CREATE TRIGGER keep_revision BEFORE UPDATE ON consumer_checkpoints FOR EACH ROW EXECUTE FUNCTION keep_revision()`,
		)["exactly once"]
		if f.Broken > 0 {
			return
		}
	}
	t.Errorf("a guard that does not compare the revision went unnoticed: %+v", f)
}

// TestLostRowsAreMissed lets rows of ledger and audit vanish.
func TestLostRowsAreMissed(t *testing.T) {
	c := small(t)
	for c.Seed = 1; Draw(c).Knobs.strict() || Draw(c).Knobs.MaxOpenRanges < 100; c.Seed++ { // open ranges are wanted
	}
	findings := spoiled(t, c,
		`CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`,
		`CREATE TRIGGER lose_some BEFORE INSERT ON sim_ledger FOR EACH ROW WHEN (NEW.position % 50 = 0) EXECUTE FUNCTION lose()`,
		`CREATE TRIGGER lose_void BEFORE INSERT ON consumer_gap_skips FOR EACH ROW WHEN (NEW.state = 'void' AND NEW.gap_position % 7 = 0) EXECUTE FUNCTION lose()`,
		`CREATE TRIGGER lose_open BEFORE INSERT ON consumer_gap_skips FOR EACH ROW WHEN (NEW.state = 'open') EXECUTE FUNCTION lose()`,
	)
	for _, name := range []string{"exactly once", "audit", "no guessing"} {
		if f := findings[name]; f.Broken == 0 {
			t.Errorf("%q was not broken: %+v", name, f)
		}
	}
	for _, name := range []string{"nothing else", "one at a time", "forwards", "life cycle"} {
		if f := findings[name]; f.Broken > 0 {
			t.Errorf("%q was broken, too: %+v", name, f)
		}
	}
}
