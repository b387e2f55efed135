package queue

import (
	"embed"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// statements is the SQL of a Queue. Lists are passed as text, of JSON or of arrays.
type statements struct {
	enqueue, enqueueAlike, enqueueOnce, emit, keys, once, await, log string
	find, attempts, counts, logs                                     string
	claim                                                            map[Caps]string // by the locked caps
	inFlight, start, late, lock, room, peek                          string
	complete, completeOne, settle, verdict, cancel                   string
	want, unknown, unserved, unadvanced, claimers, expire, retained  string
	retainable, remove, forgettable, forget, expirable               string
	cancelAll, askAll, makeDue, reenqueue                            string
	lost, reset                                                      string // both follow the CTE dead
}

// maxAttempts bounds the stored attempts of a job, since a job may snooze for ever.
const maxAttempts = 1000

// ChannelsSQL returns SQL expressions for the channels of new jobs and of awaited ends. The
// name contains the table's oid, which is unique within the database.
func ChannelsSQL(t tables.Jobs) (newJobs, ends string) {
	oid := `to_regclass(` + ident.Literal(t.Jobs.SQL()) + `)::oid::text`
	return `'worker_jobs_' || ` + oid, `'worker_jobs_ends_' || ` + oid
}

func newStatements(t tables.Jobs) statements {
	newJobs, ends := ChannelsSQL(t)
	values := sqltext.Names(t, sqltext.Values{
		"sequence": ident.Literal(t.Jobs.SQL()), "new_jobs": newJobs, "ends": ends, "most_attempts": strconv.Itoa(maxAttempts),
		"timeout": liveness.TimeoutSQL("o", "interval '30 seconds'"), "open": "{open}", "limit": "{limit}", "ids": "{ids}", "condition": "{condition}",
	})
	r := func(name string) string { return texts.Statement(name, values) }
	claim := func(open string) string { return strings.ReplaceAll(r("claim"), "{open}", texts.Fill(open, values)) }
	return statements{
		enqueue: r("enqueue"), enqueueAlike: r("enqueue_alike"), enqueueOnce: r("enqueue_once"), emit: r("emit"),
		keys: r("keys"), once: r("once_owner"), await: r("await"), log: r("log"),
		find: r("find"), attempts: r("attempts_of"), counts: r("counts"), logs: r("logs_of"),
		claim: map[Caps]string{
			{}: claim(`{uncapped name IN ($3::text, '*')}`), {Own: true}: claim(`{uncapped name = '*'}`),
			{All: true}: claim(`{uncapped name = $3::text}`), {Own: true, All: true}: claim(`true`),
		},
		inFlight: r("in_flight"), start: r("start"), late: r("late"), lock: r("lock"), room: r("room"), peek: r("peek"),
		complete: r("complete"), completeOne: r("complete_one"), settle: r("settle"), verdict: r("verdict"), cancel: r("cancel"),
		want: r("want"), unknown: r("unknown"), unserved: r("unserved"), unadvanced: r("unadvanced"), claimers: r("claimers"), expire: r("expire"), retained: r("retained"),
		retainable: r("retainable"), remove: r("remove"), forgettable: r("forgettable"), forget: r("forget"), expirable: r("expirable"),
		cancelAll: r("cancel_all"), askAll: r("ask_all"), makeDue: r("make_due"), reenqueue: r("reenqueue"),
		lost: r("lost"), reset: r("reset"),
	}
}

// orphansSQL returns the statement with the tables of consumers, or without them if there are none.
func orphansSQL(t tables.Jobs, events *tables.Tables) string {
	if events == nil {
		return texts.Statement("orphans", sqltext.Names(t, sqltext.Values{"known": "false"}))
	}
	values := sqltext.Names(t, sqltext.Names(*events, nil))
	values["known"] = texts.Fill(`EXISTS (SELECT FROM {checkpoints} AS c WHERE c.consumer_name = of.emitter)`, values)
	return texts.Statement("orphans", values)
}

func raiseSQL(t tables.Jobs, events tables.Tables) string {
	return texts.Statement("raise", sqltext.Names(t, sqltext.Names(events, nil)))
}
