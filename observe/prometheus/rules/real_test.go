package rules_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var by = ops.By{Operator: "ann", Reason: "a test"}

// deployment is a worker of each kind, as Prometheus sees them.
type deployment struct {
	t *testing.T
	*metrics.Recorder
}

// unmeasured is for histograms: no alert asks about them.
type unmeasured struct{}

func (unmeasured) Open(*metrics.Metric, ...string) func(context.Context, float64) {
	return func(context.Context, float64) {}
}
func (unmeasured) Drop(*metrics.Metric, ...string) {}

func (d deployment) Options() []worker.Option {
	return []worker.Option{worker.WithObserver(d.Observer())}
}

func (d deployment) JobsOptions() []jobs.Option {
	return []jobs.Option{jobs.WithObserver(d.Observer())}
}

// scrape is what Prometheus keeps: values by series.
type scrape map[string]float64

func (d deployment) scrape() scrape {
	all := scrape{}
	d.Collect(d.t.Context(), func(m *metrics.Metric, value float64, attributes ...string) {
		series := m.Prometheus() + `{namespace="shop",job="w",instance="1"`
		for i, name := range m.Attributes {
			if attributes[i] != "" {
				series += fmt.Sprintf(",%s=%q", name, attributes[i])
			}
		}
		all[series+"}"] = value
	})
	return all
}

// lasted is a scrape that was the same for some minutes.
type lasted struct {
	scrape
	minutes int
}

// awaitAlerts waits until a scrape, were it the same for minutes after what was before, makes
// exactly those alerts fire.
func (d deployment) awaitAlerts(minutes int, want string, before ...lasted) scrape {
	d.t.Helper()
	for deadline := time.Now().Add(pgtest.Patience); ; time.Sleep(500 * time.Millisecond) {
		now := d.scrape()
		past := append(slices.Clone(before), lasted{now, minutes})
		names, total := map[string]bool{}, -1
		for _, p := range past {
			total += p.minutes
			for name := range p.scrape {
				names[name] = true
			}
		}
		var series []string
		for _, name := range slices.Sorted(maps.Keys(names)) {
			line := name
			for _, p := range past {
				value := "_"
				if v, is := p.scrape[name]; is {
					value = fmt.Sprint(v)
				}
				line += strings.Repeat(" "+value, p.minutes)
			}
			series = append(series, line)
		}
		got := strings.Join(alerts(d.t, total, series...), ", ")
		if got == want {
			return now
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%q fire, want %q, of\n%v", got, want, now)
		}
	}
}

// alarm is what makes an alert fire: for so many minutes, until it is mended.
type alarm struct {
	want    string
	minutes int
	happen  func()
	mend    func() // nil: it is over by itself
}

// play has an alarm come and go. A while after, nothing fires.
func (d deployment) play(a alarm) {
	d.t.Helper()
	healthy := lasted{d.awaitAlerts(12, ""), 2}
	a.happen()
	wrong := lasted{d.awaitAlerts(a.minutes, a.want, healthy), a.minutes}
	if a.mend != nil {
		a.mend()
	}
	d.awaitAlerts(20, "", healthy, wrong)
}

// picky is a consumer that fails at the aggregate "bad", and is slow with the aggregate "slow".
type picky struct {
	name     string
	released chan struct{}
}

func (p picky) Name() string { return p.name }

func (p picky) Handle(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	switch e.AggregateID {
	case "bad":
		return errors.New("cannot handle this")
	case "slow":
		select {
		case <-p.released:
		case <-ctx.Done():
		}
	}
	return nil
}

// Alerts fire on what a real worker tells, and end after their remedy.
func TestAlertsOfConsumers(t *testing.T) {
	db := pgtest.New(t)
	d := deployment{t, metrics.New(unmeasured{})}
	o, err := ops.New(db.DB)
	must(t, err)
	slow := make(chan struct{})
	options := []worker.Option{worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1),
		worker.WithStaleGapThreshold(200 * time.Millisecond), worker.WithMaxOpenRanges(100), worker.WithHeartbeatTimeout(time.Minute)}
	_, end := metricstest.Start(t, db.DB, d, []consumer.Consumer{picky{"c", slow}, picky{"old", slow}}, options...)
	var open *sql.Tx
	for _, a := range []alarm{
		{"ConsumerPaused c", 12, func() { must(t, o.Pause(t.Context(), "c", by)) }, func() { must(t, o.Resume(t.Context(), "c", by)) }},
		{"DeadLetters c, DeadLetters old", 12, func() { metricstest.Commit(t, metricstest.Append(t, db.DB, "bad", store.Event{})) }, nil},
		{"ConsumerLate c, ConsumerLate old", 12, func() {
			tx := metricstest.Append(t, db.DB, "slow", store.Event{})
			_, err := tx.Exec(`UPDATE events SET created_at = created_at - interval '10 minutes' WHERE aggregate_id = 'slow'`)
			must(t, err)
			metricstest.Commit(t, tx)
		}, func() { close(slow) }},
		{"FrontierDown", 12, func() { db.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 10`) }, func() { db.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`) }},
		{"Blocked, OpenRanges c, OpenRanges old", 12, func() {
			open = metricstest.Append(t, db.DB, "late", store.Event{})
			db.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
				SELECT 'a', 'many', i, gen_random_uuid(), 't', convert_to(nextval('events_global_position_seq')::text, 'UTF8') FROM generate_series(1, 200) AS i`)
		}, func() { must(t, open.Rollback()) }},
		{"WorkerStopped", 12, end, func() {
			metricstest.Start(t, db.DB, d, []consumer.Consumer{picky{"c", slow}, picky{"old", slow}}, options...)
		}},
	} {
		d.play(a)
	}
}

// A consumer whose code is released has an alert until it is retired.
func TestAlertOfUnownedConsumers(t *testing.T) {
	db := pgtest.New(t)
	d := deployment{t, metrics.New(unmeasured{})}
	o, err := ops.New(db.DB)
	must(t, err)
	_, end := metricstest.Start(t, db.DB, d, []consumer.Consumer{picky{name: "c"}, picky{name: "old"}})
	d.play(alarm{"ConsumersUnowned", 12, func() {
		end()
		metricstest.Start(t, db.DB, d, []consumer.Consumer{picky{name: "c"}})
	}, func() { must(t, o.Retire(t.Context(), "old", by)) }})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
