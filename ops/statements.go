package ops

import (
	"embed"
	"fmt"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// statements are the statements of an Operator. {conditions}, {payload} and {event} are replaced
// in each call.
type statements struct {
	allDeadLetters, deadLetters, matching, event string
	retryMany, discardMany                       string
	consumers, workers, gaps, next               string
	allOperations, operationsOf                  string
	notStuck, skipLate                           string
	replay, replayTypes, missed                  string
	eventsOf, drawAggregate                      string
}

func newStatements(t tables.Tables) statements {
	values := sqltext.Names(t, sqltext.Values{
		"units_of": unitsOf, "conditions": "{conditions}", "payload": "{payload}", "event": "{event}",
		"heartbeat_age": liveness.AgeSQL("n"), "timeout_or_0": liveness.TimeoutSQL("n", "interval '0'"), "timeout_or_30s": liveness.TimeoutSQL("n", "interval '30 seconds'"),
	})
	r := func(name string) string { return texts.Statement(name, values) }
	return statements{
		allDeadLetters: r("all_dead_letters"), deadLetters: r("dead_letters"), matching: r("matching"), event: r("event"),
		retryMany: r("retry_many"), discardMany: r("discard_many"),
		consumers: r("consumers"), workers: r("workers"), gaps: r("gaps"), next: r("next"),
		allOperations: r("all_operations"), operationsOf: r("operations_of"),
		notStuck: r("not_stuck"), skipLate: r("skip_late"),
		replay: r("replay"), replayTypes: r("replay_types"), missed: r("missed"),
		eventsOf: r("events_of"), drawAggregate: r("draw_aggregate"),
	}
}

// unitsOf is an SQL condition for the units of the split consumer $1.
const unitsOf = `left(consumer_name, length($1::text) + 1) = $1::text || '#'`

// jobsStatements are the statements of a Jobs. {parts} and {limit} are replaced in each call.
type jobsStatements struct{ list, queues, workers, acknowledge string }

func newJobsStatements(t tables.Jobs) jobsStatements {
	values := sqltext.Names(t, sqltext.Values{
		"parts": "{parts}", "limit": "{limit}", "retention": microsSQL, "most": fmt.Sprint(maxCountedJobs + 1),
		"heartbeat_age": liveness.AgeSQL("n"), "timeout_or_0": liveness.TimeoutSQL("n", "interval '0'"),
	})
	r := func(name string) string { return texts.Statement(name, values) }
	return jobsStatements{list: r("list"), queues: r("queues"), workers: r("jobs_workers"), acknowledge: r("acknowledge")}
}

// maxJobs is the largest limit of List and CancelAll.
const maxJobs = 10_000

// microsSQL is a retention in microseconds. An infinite retention, or one longer than Forever,
// becomes Forever. The CASE is necessary since least ignores NULL.
const microsSQL = `CASE WHEN retention IS NOT NULL THEN least(extract(epoch FROM retention) * 1000000, 9223372036854775)::bigint END`

const maxCountedJobs = 10_000
