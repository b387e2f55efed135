package metrics_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// takes is a consumer that handles all events.
type takes string

func (c takes) Name() string { return string(c) }

func (takes) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

// While the server is away, the gauges of a worker of events keep their last values, or grow with
// the time. The leader's gauge ends with the leadership.
func TestGaugesWhileTheServerIsAway(t *testing.T) {
	server := pgtest.OwnServer(t, nil)
	db, err := sql.Open("pgx", server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(20)
	tables := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), db, &tables); err != nil {
		t.Fatal(err)
	}
	o, err := ops.New(db)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlain()
	await := func(what string, is func(v metricstest.Values) bool) (v metricstest.Values) {
		t.Helper()
		if !pgtest.Poll(func() bool { v = p.read(t); return is(v) }) {
			t.Fatalf("waited in vain for %s:\n%v", what, v)
		}
		return v
	}
	of := func(v metricstest.Values, key string) float64 { return v["pgfrontier."+key] }
	metricstest.Start(t, db, p, []consumer.Consumer{takes("a"), takes("b")}, worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(200*time.Millisecond), worker.WithHeartbeatTimeout(time.Minute))
	await("a start", func(v metricstest.Values) bool {
		return of(v, "consumers.assigned{}") == 2 && of(v, "worker.leader{}") == 1
	})
	if err := o.Pause(t.Context(), "a", ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	await("a pause", func(v metricstest.Values) bool { return of(v, "consumer.paused{consumer=a}") == 1 })
	metricstest.Commit(t, metricstest.Append(t, db, "one", make([]store.Event, 3)...))
	open := metricstest.Append(t, db, "open", store.Event{})
	metricstest.Commit(t, metricstest.Append(t, db, "two", store.Event{}))
	before := await("a transaction that is waited for", func(v metricstest.Values) bool {
		return of(v, "frontier.blockers{state=holding}") == 1 && of(v, "frontier.blocked.age{}") > 0.2 && of(v, "frontier.still{}") > 0 &&
			of(v, "consumer.behind{consumer=a}") == 5 && of(v, "consumer.lag{consumer=a}") == 3 && of(v, "consumer.behind{consumer=b}") == 2 &&
			of(v, "consumer.oldest.age{consumer=a}") > 0 && of(v, "consumer.oldest.age{consumer=b}") > 0 && of(v, "worker.heartbeat.age{}") > 0
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	away := await("the log to be away for a while", func(v metricstest.Values) bool {
		return of(v, "frontier.up{}") == 0 && of(v, "frontier.read.age{}") > 2 &&
			of(v, "worker.heartbeat.age{}") > max(2, of(before, "worker.heartbeat.age{}")) // a heartbeat may have come since
	})
	for key, was := range before {
		name := strings.TrimPrefix(key, "pgfrontier.")
		is, there := away[key]
		grows := strings.Contains(name, "age{") || strings.HasPrefix(name, "frontier.still") || !isGauge(key)
		switch {
		case name == "consumers.unowned{}", name == "worker.leader{}", name == "frontier.up{}":
		case !there, grows && is < was, !grows && is != was:
			t.Errorf("%s was %v, and is %v (%v)", name, was, is, there)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = open.Rollback()
	await("the log to be read again", func(v metricstest.Values) bool {
		return of(v, "frontier.up{}") == 1 && of(v, "frontier.read.age{}") < 2 && of(v, "frontier.blockers{state=holding}") == 0 &&
			of(v, "consumer.behind{consumer=a}") == 5 && of(v, "consumer.behind{consumer=b}") == 0
	})
}

// isGauge reports whether a series is of a gauge.
func isGauge(key string) bool {
	name, _, _ := strings.Cut(key, "{")
	return slices.ContainsFunc(metrics.All(), func(m *metrics.Metric) bool { return m.Name == name && m.Kind == metrics.Gauge })
}
