package e2e

import (
	"context"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
)

var durations = regexp.MustCompile(`allowed is ([^ ,;]+) to ([^ ,;]+)`)

// An option whose range another option determines names that option. No error has a range without a
// value: if the other option is out of range, only that is an error.
func TestRangesHaveValues(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	events := func(opts ...worker.Option) error { return worker.New(db, nil, nil, opts...).Start(t.Context()) }
	queue := func(opts ...jobs.Option) error {
		return jobs.NewWorker(db, jobs.NewHandlers(), opts...).Start(t.Context())
	}
	own := func(o table.WorkerOptions, stalled time.Duration) error {
		s := table.NewStore(db, table.Options[int]{
			TableName: "t", ColumnExpressions: []string{"id"}, Scan: func(table.Row) (int, error) { return 0, nil }, StalledMaxAge: stalled,
		})
		return table.NewWorker(s, table.Handler[int]{Handle: func(context.Context, *table.Job[int]) error { return nil }}, o).Start(t.Context())
	}
	const most = time.Duration(math.MaxInt64)
	for name, c := range map[string]struct {
		err       error
		says, not string
	}{
		"heartbeat timeout":       {events(worker.WithHeartbeatTimeout(9 * time.Second)), "WithHeartbeatTimeout: 9s is out of range, allowed is 10s to 24h0m0s, the least is 2 x WithHeartbeatInterval", ""},
		"retry limit":             {events(worker.WithRetryLimit(9 * time.Second)), "WithRetryLimit: 9s is out of range, allowed is 10s to 8760h0m0s, the least is 2 x WithHeartbeatInterval", ""},
		"longest poll":            {events(worker.WithMaxPollInterval(time.Millisecond)), "WithMaxPollInterval: 1ms is out of range, allowed is 1s to 24h0m0s, the least is WithPollInterval", ""},
		"longest heartbeat":       {events(worker.WithHeartbeatInterval(most), worker.WithHeartbeatTimeout(-3), worker.WithRetryLimit(-3)), "WithHeartbeatInterval: ", "WithHeartbeatTimeout"},
		"long heartbeat":          {events(worker.WithHeartbeatInterval(100 * time.Hour)), "WithHeartbeatInterval: 100h0m0s is", "WithHeartbeatTimeout"},
		"long poll":               {events(worker.WithPollInterval(100 * time.Hour)), "WithPollInterval: 100h0m0s is", "WithMaxPollInterval"},
		"jobs: heartbeat timeout": {queue(jobs.WithHeartbeatTimeout(9 * time.Second)), "WithHeartbeatTimeout: 9s is out of range, allowed is 10s to 24h0m0s, the least is 2 x WithHeartbeatInterval", ""},
		"jobs: longest poll":      {queue(jobs.WithMaxPollInterval(time.Millisecond)), "WithMaxPollInterval: 1ms is out of range, allowed is 1s to 24h0m0s, the least is WithPollInterval", ""},
		"jobs: longest heartbeat": {queue(jobs.WithHeartbeatInterval(most), jobs.WithHeartbeatTimeout(-3)), "WithHeartbeatInterval: ", "WithHeartbeatTimeout"},
		"jobs: long poll":         {queue(jobs.WithPollInterval(100*time.Hour), jobs.WithMaxPollInterval(time.Second)), "WithPollInterval: 100h0m0s is", "WithMaxPollInterval"},
		"table: longest poll":     {own(table.WorkerOptions{MaxInterval: time.Millisecond}, time.Minute), "MaxInterval: 1ms is out of range, allowed is 1s to 24h0m0s, the least is Interval", ""},
		"table: long poll":        {own(table.WorkerOptions{Interval: 100 * time.Hour}, time.Minute), "Interval: 100h0m0s is out of range, allowed is 1ms to 1h0m0s", "MaxInterval"},
		"table: heartbeat":        {own(table.WorkerOptions{HeartbeatInterval: most}, time.Minute), "StalledMaxAge (1m0s) must be three of it", ""},
		"table: never stalled":    {own(table.WorkerOptions{}, -time.Hour), "StalledMaxAge: -1h0m0s is out of range", "HeartbeatInterval"},
	} {
		text := c.err.Error()
		if !errors.Is(c.err, worker.ErrInvalidConfig) || !strings.Contains(text, c.says) || c.not != "" && strings.Contains(strings.ReplaceAll(text, c.says, ""), c.not) {
			t.Errorf("%s: %s", name, text)
		}
		for _, all := range durations.FindAllStringSubmatch(text, -1) {
			low, err := time.ParseDuration(all[1])
			high, err2 := time.ParseDuration(all[2])
			if err == nil && err2 == nil && low > high {
				t.Errorf("%s: the range of %q has no value", name, all[0])
			}
		}
	}
}
