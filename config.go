package worker

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/derived"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// reconcileInterval is how often a listening worker looks by itself, in case
// a notification was lost.
const reconcileInterval = time.Second

// Validate reports every setting that is out of range, each with its option,
// its value and the range.
func (c Config) Validate() error {
	var all []error
	check := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	const day = 24 * time.Hour
	check(inRange("WithBatchSize", c.BatchSize, 1, 100_000))
	check(inRange("WithBatchPause", c.BatchPause, 0, time.Hour))
	check(inRange("WithBatchTimeout", c.BatchTimeout, 10*time.Millisecond, day))
	check(inRange("WithMaxConsecutiveFailures", c.MaxConsecutiveFailures, 1, 1_000_000))
	check(oneOf("WithFailurePolicy", c.FailurePolicy, FailStop, FailPause, FailDeadLetter))
	if c.RetryLimit != 0 {
		check(inRange("WithRetryLimit", c.RetryLimit, 2*c.HeartbeatInterval, 365*day))
	}
	if c.ShutdownTimeout != 0 {
		check(inRange("WithShutdownTimeout", c.ShutdownTimeout, 10*time.Millisecond, day))
	}
	check(inRange("WithPollInterval", c.PollInterval, time.Millisecond, time.Hour))
	check(inRange("WithMaxPollInterval", c.MaxPollInterval, c.PollInterval, day))
	check(oneOf("WithDispatcherStrategy", c.DispatcherStrategy, DispatcherStrategyPoll, DispatcherStrategyNotify))
	check(inRange("WithDispatcherInterval", c.DispatcherInterval, time.Millisecond, time.Hour))
	check(ident.Check("WithNotifyChannel", c.NotifyChannel))
	if c.DispatcherStrategy == DispatcherStrategyNotify {
		check(c.checkNotifyConnection())
	}
	check(inRange("WithHeartbeatInterval", c.HeartbeatInterval, 10*time.Millisecond, time.Hour))
	check(inRange("WithHeartbeatTimeout", c.HeartbeatTimeout, 2*c.HeartbeatInterval, day))
	check(inRange("WithRebalanceInterval", c.RebalanceInterval, 10*time.Millisecond, time.Hour))
	check(oneOf("WithLeaderStrategy", c.LeaderStrategy, LeaderStrategyAdvisory, LeaderStrategyLease))
	check(oneOf("WithAssignmentStrategy", c.AssignmentStrategy, AssignRoundRobin, AssignSticky))
	check(inRange("WithStaleGapThreshold", c.StaleGapThreshold, 10*time.Millisecond, day))
	check(inRange("WithStaleGapHarborLag", c.StaleGapHarborLag, 0, 1_000_000))
	check(oneOf("WithGapPolicy", c.GapPolicy, GapSkipStale, GapWait))
	check(inRange("WithMaxOpenRanges", c.MaxOpenRanges, 1, 1_000_000))
	if c.GapSkipRetention != 0 {
		check(inRange("WithGapSkipRetention", c.GapSkipRetention, 100*time.Millisecond, 3650*day))
	}
	_, err := c.tables()
	check(err)
	return errtext.Join(all...)
}

func (c Config) checkNotifyConnection() error {
	if c.NotifyConnectionString == "" {
		return errors.New("WithDispatcherStrategy: DispatcherStrategyNotify needs WithNotifyConnectionString, a direct connection to PostgreSQL")
	}
	if _, err := pgx.ParseConfig(c.NotifyConnectionString); err != nil {
		// What is wrong with it may show a password.
		return errors.New(`WithNotifyConnectionString: this is no connection string: it takes "postgres://user:password@host:5432/database" or "host=... dbname=...", with percent-encoded special characters in the first form, and the files that it names must be there`)
	}
	return nil
}

func inRange[T cmp.Ordered](option string, value, low, high T) error {
	if low <= value && value <= high {
		return nil
	}
	return fmt.Errorf("%s: %v is out of range, allowed is %v to %v", option, value, low, high)
}

func oneOf[T ~string](option string, value T, allowed ...T) error {
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		if value == a {
			return nil
		}
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Errorf("%s: %s is unknown, allowed are %s", option, errtext.Value(value), strings.Join(quoted, " and "))
}

// String prints every setting as the options that would make it, one a line,
// without the connection string's content.
func (c Config) String() string {
	var b strings.Builder
	line := func(option string, value any) { fmt.Fprintf(&b, "%s(%v)\n", option, value) }
	line("WithBatchSize", c.BatchSize)
	line("WithBatchPause", c.BatchPause)
	line("WithBatchTimeout", c.BatchTimeout)
	line("WithMaxConsecutiveFailures", c.MaxConsecutiveFailures)
	line("WithFailurePolicy", c.FailurePolicy)
	line("WithRetryLimit", c.RetryLimit)
	line("WithShutdownTimeout", c.ShutdownTimeout)
	line("WithPollInterval", c.PollInterval)
	line("WithMaxPollInterval", c.MaxPollInterval)
	line("WithDispatcherStrategy", c.DispatcherStrategy)
	line("WithDispatcherInterval", c.DispatcherInterval)
	if c.NotifyConnectionString != "" {
		line("WithNotifyConnectionString", "***")
	}
	line("WithNotifyChannel", c.NotifyChannel)
	line("WithHeartbeatInterval", c.HeartbeatInterval)
	line("WithHeartbeatTimeout", c.HeartbeatTimeout)
	line("WithRebalanceInterval", c.RebalanceInterval)
	line("WithLeaderStrategy", c.LeaderStrategy)
	line("WithAssignmentStrategy", c.AssignmentStrategy)
	line("WithStaleGapThreshold", c.StaleGapThreshold)
	line("WithStaleGapHarborLag", c.StaleGapHarborLag)
	line("WithGapPolicy", c.GapPolicy)
	line("WithMaxOpenRanges", c.MaxOpenRanges)
	line("WithGapSkipRetention", c.GapSkipRetention)
	line("WithWorkerNodesTable", c.WorkerNodesTable)
	line("WithConsumerAssignmentsTable", c.ConsumerAssignmentsTable)
	line("WithConsumerCheckpointsTable", c.ConsumerCheckpointsTable)
	line("WithConsumerGapSkipsTable", c.ConsumerGapSkipsTable)
	line("WithLeaderElectionTable", c.LeaderElectionTable)
	return b.String()
}

// tables are the validated names.
type tables struct {
	nodes, assignments, checkpoints, gapSkips, leader ident.Table
	derived.Tables
}

func (c Config) tables() (t tables, err error) {
	var all []error
	parse := func(into *ident.Table, option, name string) {
		table, err := ident.ParseTable(option, name)
		if err != nil {
			all = append(all, err)
		}
		*into = table
	}
	parse(&t.nodes, "WithWorkerNodesTable", c.WorkerNodesTable)
	parse(&t.assignments, "WithConsumerAssignmentsTable", c.ConsumerAssignmentsTable)
	parse(&t.checkpoints, "WithConsumerCheckpointsTable", c.ConsumerCheckpointsTable)
	parse(&t.gapSkips, "WithConsumerGapSkipsTable", c.ConsumerGapSkipsTable)
	parse(&t.leader, "WithLeaderElectionTable", c.LeaderElectionTable)
	if len(all) > 0 {
		return t, errtext.Join(all...)
	}
	t.Tables, err = derived.From("WithConsumerCheckpointsTable", t.checkpoints)
	return t, err
}

// resolve returns the tables under the names that they have with their schema.
func (t tables) resolve(ctx context.Context, q store.Querier) (tables, error) {
	all := []*ident.Table{&t.nodes, &t.assignments, &t.checkpoints, &t.gapSkips, &t.leader,
		&t.Token, &t.Settled, &t.Changes, &t.Version, &t.DeadLetters, &t.Operations}
	for _, table := range all {
		err := q.QueryRowContext(ctx, `
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text) AND c.relpersistence <> 't'`, table.SQL()).Scan(&table.Schema, &table.Name)
		if errors.Is(err, sql.ErrNoRows) {
			return t, fmt.Errorf("worker: there is no table %s that is not a temporary one: apply the migrations, or give its name with the schema", table)
		}
		if err != nil {
			return t, fmt.Errorf("worker: look for table %s: %w", table, err)
		}
	}
	return t, nil
}

// migrations names the tables for the check of the schema.
func (c Config) migrations() *migrations.Config {
	m := migrations.DefaultConfig()
	m.WorkerNodesTable = c.WorkerNodesTable
	m.ConsumerAssignmentsTable = c.ConsumerAssignmentsTable
	m.ConsumerCheckpointsTable = c.ConsumerCheckpointsTable
	m.ConsumerGapSkipsTable = c.ConsumerGapSkipsTable
	m.LeaderElectionTable = c.LeaderElectionTable
	return &m
}

func (c Config) frontier(db *sql.DB, log store.Log, t tables, onChange func()) frontier.Config {
	f := frontier.Config{
		DB: db, Log: log, Token: t.Token, Settled: t.Settled, Changes: t.Changes,
		Policy:     frontier.SkipStale,
		StaleAfter: c.StaleGapThreshold,
		HarborLag:  int64(c.StaleGapHarborLag),
		Interval:   c.DispatcherInterval,
		OnChange:   onChange,
		Logger:     c.Logger,
	}
	if c.GapPolicy == GapWait {
		f.Policy = frontier.Wait
	}
	if c.DispatcherStrategy == DispatcherStrategyNotify {
		f.Interval = reconcileInterval
	}
	return f
}

func (c Config) coord(db *sql.DB, id uuid.UUID, units []*unit, t tables, status func() ([]byte, error)) coord.Config {
	cc := coord.Config{
		DB: db, ID: id,
		Nodes: t.nodes, Assignments: t.assignments, Checkpoints: t.checkpoints, Leader: t.leader, Changes: t.Changes,
		HeartbeatInterval: c.HeartbeatInterval,
		HeartbeatTimeout:  c.HeartbeatTimeout,
		RebalanceInterval: c.RebalanceInterval,
		Strategy:          coord.Advisory,
		Sticky:            c.AssignmentStrategy == AssignSticky,
		Logger:            c.Logger,
		Status:            status,
	}
	if c.LeaderStrategy == LeaderStrategyLease {
		cc.Strategy = coord.Lease
	}
	for _, u := range units {
		cc.Units = append(cc.Units, u.name)
	}
	return cc
}
