package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Queue is the tables of jobs. Its statements run on connections or in transactions of the callers.
type Queue struct {
	Enqueuer
	Claimer
	Settler
	Reader
	Operator
	Leader

	tables tables.Jobs
}

// New returns a Queue. Its statements take lists as text, of JSON or of arrays.
func New(t tables.Jobs) *Queue {
	newJobs, ends := ChannelsSQL(t)
	values := sqltext.Names(t, sqltext.Values{
		"sequence": ident.Literal(t.Jobs.SQL()), "history_name": ident.Literal(t.History.String()), "new_jobs": newJobs, "ends": ends, "most_attempts": strconv.Itoa(maxAttempts),
		"timeout": liveness.TimeoutSQL("o", "interval '30 seconds'"), "open": "{open}", "limit": "{limit}", "ids": "{ids}", "condition": "{condition}",
	})
	r := func(name string) string { return texts.Statement(name, values) }
	claim := func(open string) string { return strings.ReplaceAll(r("claim"), "{open}", texts.Fill(open, values)) }
	return &Queue{
		tables: t,
		Enqueuer: Enqueuer{enqueueSQL{
			enqueue: r("enqueue"), enqueueAlike: r("enqueue_alike"), enqueueOnce: r("enqueue_once"), emit: r("emit"), keys: r("keys"), once: r("once_owner"),
		}, t.Jobs, t.Emitted},
		Claimer: Claimer{claimSQL{
			claim: map[Caps]string{
				{}: claim(`{uncapped name IN ($3::text, '*')}`), {Own: true}: claim(`{uncapped name = '*'}`),
				{All: true}: claim(`{uncapped name = $3::text}`), {Own: true, All: true}: claim(`true`),
			},
			inFlight: r("in_flight"), start: r("start"), late: r("late"), lock: r("lock"), room: r("room"), peek: r("peek"), due: r("due"), want: r("want"),
		}},
		Settler: Settler{settleSQL{complete: r("complete"), completeOne: r("complete_one"), settle: r("settle"), verdict: r("verdict")}},
		Reader:  Reader{readSQL{find: r("find"), attempts: r("attempts_of"), counts: r("counts"), logs: r("logs_of"), await: r("await"), log: r("log")}},
		Operator: Operator{t, operateSQL{
			cancel: r("cancel"), cancelAll: r("cancel_all"), askAll: r("ask_all"), makeDue: r("make_due"), reenqueue: r("reenqueue"),
		}},
		Leader: Leader{t, leadSQL{
			lost: r("lost"), reset: r("reset"), claimers: r("claimers"), unknown: r("unknown"), unserved: r("unserved"), unadvanced: r("unadvanced"),
			expirable: r("expirable"), expire: r("expire"), retained: r("retained"), retainable: r("retainable"), remove: r("remove"),
			forgettable: r("forgettable"), forget: r("forget"),
		}},
	}
}

// Channels returns the names of two channels. newJobs carries the queue of each new job. ends
// carries the id of each ended job that a process awaits.
func (q *Queue) Channels(ctx context.Context, on store.Querier) (newJobs, ends string, err error) {
	n, e := ChannelsSQL(q.tables)
	err = on.QueryRowContext(ctx, `SELECT coalesce(`+n+`, ''), coalesce(`+e+`, '')`).Scan(&newJobs, &ends)
	if err == nil && newJobs == "" {
		err = fmt.Errorf("there is no table %s", q.tables.Jobs)
	}
	if err != nil {
		return "", "", fmt.Errorf("jobs: read the channels: %w", err)
	}
	return newJobs, ends, nil
}
