package coord

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A unit is reported as idle once every poll of the given period has shown it idle, and never
// earlier.
func TestIdleUnitIsReportedAfterAPeriod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const enough = 5 * time.Second
		var v idleSince
		since := map[string]time.Time{} // by a simple count
		now := time.Now()
		for range rapid.IntRange(1, 20).Draw(t, "polls") {
			now = now.Add(drawDuration(t, "pause", 0, 4*time.Second))
			found := map[string]cause{}
			for _, u := range rapid.SliceOf(rapid.SampledFrom(six)).Draw(t, "idle") {
				found[u] = notKept
			}
			var want []string
			for _, u := range six {
				if _, is := found[u]; !is {
					delete(since, u)
					continue
				}
				if _, was := since[u]; !was {
					since[u] = now
				}
				if now.Sub(since[u]) >= enough {
					want = append(want, u)
				}
			}
			var lasting []string
			if v, lasting = v.next(found, now, enough); !slices.Equal(lasting, want) || !maps.Equal(v, idleSince(since)) {
				t.Fatalf("%v, %q; want %v, %q", v, lasting, since, want)
			}
		}
	})
}

// Tables of other libraries have assignments without a worker. The leader assigns them.
func TestAssignmentWithoutAWorkerIsAssigned(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		mustExec(t, d.DB, `ALTER TABLE consumer_assignments ALTER COLUMN worker_id DROP NOT NULL`)
		mustExec(t, d.DB, `INSERT INTO consumer_assignments (consumer_name) SELECT unnest($1::text[])`, six)
		start(t, withLease(brisk(config(d.DB, six...)), leased)).awaitAssigned(six...)
	})
}

// The leader reports each consumer that no worker runs, once, with its reason, and reports
// when it runs again. Other consumers do not wait for it.
func TestUnownedConsumersAreReportedOnce(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		mustExec(t, d.DB, `ALTER TABLE consumer_assignments ALTER COLUMN worker_id DROP NOT NULL`)
		mustExec(t, d.DB, `INSERT INTO consumer_assignments (consumer_name) SELECT unnest($1::text[])`, six)
		mustExec(t, d.DB, `INSERT INTO consumer_checkpoints (consumer_name, paused_at) VALUES ('Retired', NULL), ('Paused', now())`)
		mustExec(t, d.DB, `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		mustExec(t, d.DB, `CREATE TRIGGER nothing BEFORE UPDATE ON consumer_assignments FOR EACH ROW WHEN (NEW.consumer_name = 'Email') EXECUTE FUNCTION nothing()`)
		release := lockRow(t, d.DB, `SELECT FROM consumer_assignments WHERE consumer_name = 'Billing' FOR UPDATE`)

		log := &logged{}
		cfg := withLease(brisk(config(d.DB, six...)), leased)
		log.record(&cfg)
		w := start(t, cfg)
		w.awaitAssigned("Analytics", "Inventory", "Orders", "Shipping")
		unowned := func(want ...string) {
			t.Helper()
			await(t, fmt.Sprintf("%q are unowned", want), func() bool { return slices.Equal(w.Status().Unowned, want) })
		}
		unowned("Billing", "Email", "Retired")
		release()
		w.awaitAssigned("Analytics", "Billing", "Inventory", "Orders", "Shipping")
		unowned("Email", "Retired")
		mustExec(t, d.DB, `DROP TRIGGER nothing ON consumer_assignments`)
		w.awaitAssigned(six...)
		unowned("Retired")
		for _, unit := range []string{"Billing", "Email"} { // Status shows it a moment earlier
			await(t, unit+" is said to be run again", func() bool { return log.count("run again", unit) > 0 })
		}

		for unit, want := range map[string]string{"Billing": "consumer_assignments does not stay", "Email": "a trigger", "Retired": "no live worker has code for it"} {
			if log.count("unowned", unit) != 1 || log.count("unowned", unit, want) != 1 {
				t.Errorf("%s: reported %d times, with the reason %d times", unit, log.count("unowned", unit), log.count(unit, want))
			}
			if n := log.count("run again", unit); (n == 1) == (unit == "Retired") {
				t.Errorf("%s runs again: reported %d times", unit, n)
			}
		}
		if n := log.count("unowned"); n != 3 {
			t.Errorf("%d consumers were reported, want 3", n)
		}
	})
}
