package table

import (
	"context"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// planned is the table of the manual, with its indexes.
const planned = `
CREATE TABLE example_jobs (
	id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	state             text NOT NULL DEFAULT 'queued',
	failure_message   text,
	queued_at         timestamptz DEFAULT now(),
	started_at        timestamptz,
	last_heartbeat_at timestamptz,
	finished_at       timestamptz,
	process_after     timestamptz,
	num_resets        integer NOT NULL DEFAULT 0,
	num_failures      integer NOT NULL DEFAULT 0,
	execution_logs    json[],
	worker_hostname   text NOT NULL DEFAULT '',
	cancel            boolean NOT NULL DEFAULT false,
	repository_id     integer NOT NULL
);
CREATE INDEX ON example_jobs (repository_id, id) WHERE state IN ('queued', 'errored');
CREATE INDEX ON example_jobs (id) WHERE state = 'processing';
CREATE INDEX ON example_jobs (state);
CREATE VIEW shown AS SELECT j.*, 'x' AS more FROM example_jobs AS j;`

// wholeTable matches a plan that reads the whole table.
var wholeTable = regexp.MustCompile(`Seq Scan on (public\.)?example_jobs`)

// The plans use the indexes whatever the statistics say. This holds for statistics of an empty
// table, and for generic plans.
func TestPlans(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]bool{"retries": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.Empty(t)
			if _, err := d.OpenPQ(t).ExecContext(t.Context(), planned); err != nil {
				t.Fatal(err)
			}
			d.Exec(t, `ANALYZE example_jobs`)
			d.Exec(t, `INSERT INTO example_jobs (repository_id, state) SELECT i % 100, (ARRAY['queued', 'queued', 'completed', 'errored'])[1 + i % 4] FROM generate_series(1, 100000) AS i`)
			o := Options[int]{TableName: "example_jobs AS j", ViewName: "shown", ColumnExpressions: []string{"more"}, OrderByExpression: "j.repository_id, j.id",
				Scan: func(Row) (int, error) { return 0, nil }}
			if retries {
				o.MaxNumRetries, o.RetryAfter = 5, time.Minute
			}
			s := NewStore(d.DB, o)
			q, err := s.statements(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := d.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for name, p := range map[string]struct{ types, statement, args string }{
				"claim":     {"text, text", q.claim.with("", 10), "'{}', 'here/1'"},
				"condition": {"text, text, int", q.claim.with("j.repository_id <> $3", 10), "'{3,4}', 'here/1', 7"},
				"claim of":  {"text, text, int", q.claimOf.with("j.repository_id <> $3", 10), "'{3,4}', 'here/1', 7"},
				"peek":      {"text, text, int", q.peek.with("j.repository_id <> $3", 10), "'{3,4}', 'here/1', 7"},
				"read":      {"text", q.read, "'{1,2}'"},
				"beat":      {"text, text, text, text", q.beat, "'{1,2}', '{1,2}', 'here/1', '{3}'"},
				"settle":    {"text, text", q.settle, `'[{"id":1,"claim":1,"to":"completed"}]', 'here/1'`},
				"disown":    {"text, text", q.releaseOrphans, "'{1,2}', 'here/1'"},
				"stalled":   {"", q.stalled, ""},
				"reset":     {"text, text", q.reset, "'{1,2}', '{1,NULL}'"},
				"log":       {"bigint, bigint, text, text", q.log, "1, 1, 'here/1', '{}'"},
				"relog":     {"bigint, bigint, text, text, int", q.relog, "1, 1, 'here/1', '{}', 1"},
				"requeue":   {"bigint, timestamptz", q.requeue, "1, NULL"},
			} {
				all := pgtest.ExplainGeneric(t, conn, p.types, p.statement, p.args)
				// In the order of the index, so that the first rows suffice.
				inOrder := slices.Contains([]string{"claim", "condition", "peek"}, name)
				if wholeTable.MatchString(all) || inOrder && (strings.Contains(all, "Bitmap Heap Scan on example_jobs j") || strings.Contains(all, "Sort")) {
					t.Errorf("%s:\n%s", name, all)
				}
			}
		})
	}
}

// A claim, as a number, is the same microsecond when read back, with any settings of the session.
func TestMicroseconds(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, set := range []string{`SET TimeZone = 'Asia/Kathmandu'`, `SET DateStyle = 'German'`, `SET extra_float_digits = 0`} {
		if _, err := conn.ExecContext(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		var wrong int
		if err := conn.QueryRowContext(t.Context(), `
SELECT count(*) FROM (
	SELECT 'epoch'::timestamptz + n * interval '1 microsecond' AS at, n
	FROM (SELECT 1600000000000000 + (random() * 3000000000000000)::bigint AS n FROM generate_series(1, 100000) OFFSET 0) AS x
) AS t WHERE `+pgdriver.Microseconds("at")+` <> n`).Scan(&wrong); err != nil || wrong > 0 {
			t.Errorf("%s: %d of 100000 are another time, %v", set, wrong, err)
		}
	}
}

// A worker resets exactly the rows that have been silent in each of its reads, for long enough.
func TestWatch(t *testing.T) {
	tier.Checks(t, 2_000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		const long = 10 * time.Second
		known, begin := watch{}, time.Now()
		since := map[silence]time.Time{} // the model: silent in each read since
		now := begin
		for range rapid.IntRange(1, 30).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "milliseconds")) * time.Millisecond)
			var silent []silence
			for id := range int64(4) {
				if rapid.Bool().Draw(t, "silent") {
					s := silence{id: id}
					if s.heartbeat.Valid = rapid.Bool().Draw(t, "ever"); s.heartbeat.Valid {
						s.heartbeat.Int64 = rapid.Int64Range(1, 2).Draw(t, "heartbeat")
					}
					silent = append(silent, s)
				}
			}
			for s := range since {
				if !slices.Contains(silent, s) {
					delete(since, s)
				}
			}
			var want []silence
			for _, s := range silent {
				if at, is := since[s]; !is {
					since[s] = now
				} else if now.Sub(at) >= long {
					want = append(want, s)
				}
			}
			if got := known.see(silent, now, long); !slices.Equal(got, want) {
				t.Fatalf("resets %v, want %v", got, want)
			}
		}
	})
}

// With free slots, a worker claims soon if it may find more, and at its next poll if it has found
// nothing. After a failure it does not claim before the pause is over.
func TestPace(t *testing.T) {
	tier.Checks(t, 2_000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		moment := func(name string) time.Time {
			return now.Add(time.Duration(rapid.IntRange(-2000, 2000).Draw(t, name)) * time.Millisecond)
		}
		p := pace{handlers: rapid.IntRange(1, 100).Draw(t, "handlers"), claimable: rapid.Bool().Draw(t, "hungry"),
			took: time.Duration(rapid.IntRange(0, 100).Draw(t, "took")) * time.Millisecond, claimed: now,
			pollAt: moment("poll"), pausedTo: moment("pause")}
		free := rapid.IntRange(-1, p.handlers).Draw(t, "free")
		at, never := p.next(free)
		switch {
		case never != (free <= 0):
			t.Fatalf("never: %t", never)
		case never:
		case at.Before(p.pausedTo):
			t.Fatal("it claims in the pause")
		case !p.claimable && at.Before(p.pollAt):
			t.Fatal("it claims before the poll")
		case p.claimable && at.After(p.pausedTo) && at.After(p.claimed.Add(jobrun.Gather)):
			t.Fatalf("it waits until %v", at.Sub(now))
		case p.claimable && 2*free >= p.handlers && at.After(now) && at.After(p.pausedTo):
			t.Fatal("half the slots are free, and it waits")
		}
	})
}

// The cause of the context's end decides the outcome of a job before the returned error does. Only
// nil without a transaction completes the job.
func TestDecide(t *testing.T) {
	tier.Checks(t, 2_000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		err := rapid.SampledFrom([]error{nil, errTwice, NonRetryable(errTwice), NonRetryable(nil), RequeueAfter(time.Second), RequeueAfter(-1), RequeueAfter(1 << 62), context.Canceled}).Draw(t, "error")
		cause := rapid.SampledFrom([]error{nil, ErrTimeout, ErrCanceled, ErrClaimLost, errStopping, context.Canceled}).Draw(t, "cause")
		byTx := rapid.Bool().Draw(t, "transaction")
		to, message, delay, requeued := decide(err, cause, byTx)
		if (to == StateCompleted) != (err == nil && !byTx) {
			t.Fatalf("it is %s", to)
		}
		if (message != nil) != (to == StateErrored || to == StateFailed || to == StateCanceled) {
			t.Fatalf("it is %s, the message is %v", to, message)
		}
		if (delay != nil) != requeued || requeued && (to != StateQueued || *delay < 0 || *delay > longestDelay.Microseconds()) {
			t.Fatalf("it is %s, due in %v", to, delay)
		}
		if err != nil && (cause == errStopping || cause == ErrClaimLost) && (to != StateQueued || requeued) {
			t.Fatalf("nobody has asked for it, and it is %s", to)
		}
		if err != nil && cause == ErrCanceled && to != StateCanceled {
			t.Fatalf("it was cancelled, and is %s", to)
		}
	})
}

// Values of a claim reach the statement unchanged, whatever placeholder names the user's texts
// contain.
func TestTextsOfUsersStayAsTheyAre(t *testing.T) {
	t.Parallel()
	o := Options[int]{TableName: "jobs", ColumnExpressions: []string{`'{id}' -- {state}`}, OrderByExpression: `'{limit}', id -- {table}`, Condition: `'{condition}' <> '{order}' -- `,
		Scan: func(Row) (int, error) { return 0, nil }}
	s, err := o.settings()
	if err != nil {
		t.Fatal(err)
	}
	q := newStatements(s, types{"text", "text", "json"})
	for _, text := range []string{o.OrderByExpression, o.Condition} {
		if !strings.Contains(q.claim.with("", rand.IntN(9)), text+"\n") {
			t.Errorf("%q is not in the claim", text)
		}
	}
	if !strings.Contains(q.read, o.ColumnExpressions[0]+"\n") {
		t.Error("the expression is not in the statement that reads")
	}
}
