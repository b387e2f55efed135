package table

import (
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/sqltext"
)

//go:embed sql/*.sql
var files embed.FS

var sqlTexts = sqltext.Parse(files)

// statements is the SQL about a table of jobs. Lists are sent as text, of JSON or of arrays: every
// driver supports text in every mode.
//
// No statement waits for the lock of a row. A statement passes over locked rows and reports them.
// So a transaction that holds one row, such as a handler's, does not delay heartbeats of other
// rows. And no two statements wait for each other.
//
// The locks are FOR NO KEY UPDATE. A handler may write a row that refers to a job by a foreign key.
// That row takes a lock on the job which FOR UPDATE would pass over.
type statements struct {
	claim, claimOf, peek                  claimText
	read                                  string
	beat, settle, releaseOrphans          string
	stalled, reset                        string
	log, relog                            string
	requeue                               string
	count, exists, longest                string
	tryCondition, tryOrder, tryExpression string // for EXPLAIN
}

// claimText is the text of a claim around its condition and its limit.
type claimText struct{ head, middle, tail string }

func (c claimText) with(condition string, limit int) string {
	if condition != "" {
		condition = " AND (\n" + condition + "\n)"
	}
	return c.head + condition + c.middle + fmt.Sprint(limit) + c.tail
}

// claimBreak separates the parts of a claim's text. PostgreSQL accepts no text that contains it.
const claimBreak = "\x00"

// claimParameters is how many parameters a claim has before the parameters of a condition.
const claimParameters = 2

// interval returns an SQL interval as a product. Until PostgreSQL 14 the number in an interval's
// text has less range.
func interval(microseconds int64) string {
	return fmt.Sprintf("%d * interval '1 microsecond'", microseconds)
}

// newStatements makes the SQL of a table with these column types.
func newStatements(s settings, t types) statements {
	condition := ""
	if s.condition != "" {
		condition = " AND (\n" + s.condition + "\n)"
	}
	alias := ident.Quote(s.table.alias)
	order := alias + "." + ident.Quote(s.columns["id"])
	if s.order != "" {
		order = s.order + "\n"
	}
	values := sqltext.Values{
		"table": s.table.SQL(), "alias": alias, "view": s.view.SQL(), "view_alias": ident.Quote(s.view.alias),
		"condition": condition, "order": order, "expressions": strings.Join(s.expressions, "\n, ") + "\n", "here": claimBreak,
		"server": runtime.StartedSQL, "state_type": t.state, "message_type": t.message, "log_type": t.log,
		"most": fmt.Sprint(s.most), "resets": fmt.Sprint(s.resets), "reset_message": ident.Literal(s.resetMessage), "most_stalled": fmt.Sprint(1000 + batch.MostRefused),
		"minute": interval(time.Minute.Microseconds()), "retry_after": interval(s.retryAfter.Microseconds()), "retries": fmt.Sprint(s.retryAfter > 0),
		"stalled_age": interval(s.stalled.Microseconds()), "stalled_half": interval(s.stalled.Microseconds() / 2),
	}
	for name, actual := range s.columns {
		values[name] = ident.Quote(actual)
	}
	r := func(name string) string { return sqlTexts.Statement(name, values) }
	if values["due"] = r("due_queued"); s.retryAfter > 0 {
		values["due"] = r("due_queued_or_errored")
	}
	claim := func(name string) claimText {
		parts := strings.Split(r(name), claimBreak)
		return claimText{parts[0], parts[1], parts[2]}
	}
	return statements{
		claim: claim("claim"), claimOf: claim("claim_of"), peek: claim("peek"),
		read: r("read"), beat: r("beat"), settle: r("settle"), releaseOrphans: r("release_orphans"),
		stalled: r("stalled"), reset: r("reset"), log: r("log"), relog: r("relog"), requeue: r("requeue"),
		count: r("count"), exists: r("exists"), longest: r("longest"),
		tryCondition:  sqlTexts.Fill(`SELECT FROM {table} AS {alias} WHERE true{condition}`, values),
		tryOrder:      sqlTexts.Fill(`SELECT FROM {table} AS {alias} ORDER BY {order}`, values),
		tryExpression: sqlTexts.Fill(`SELECT {expressions} FROM {view} AS {view_alias}`, values),
	}
}
