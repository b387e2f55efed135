package lockwatch

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Polls begin after the patience and continue, a second apart, until they are ended.
func TestPollAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var polls []time.Duration
		poll := func(context.Context) { polls = append(polls, time.Since(began)) }
		end := PollAfter(t.Context(), 5*time.Second, poll)
		time.Sleep(7*time.Second + time.Millisecond)
		end()
		if want := []time.Duration{5 * time.Second, 6 * time.Second, 7 * time.Second}; !slices.Equal(polls, want) {
			t.Errorf("polls after %v, want %v", polls, want)
		}
		PollAfter(t.Context(), time.Minute, func(context.Context) { t.Error("a poll after the end") })()
	})
}

// A connection is dead if two polls in a row find its session idle, or if no poll succeeds
// until the limit.
func TestStaleness(t *testing.T) {
	const limit = 10 * time.Second
	working, waiting, silent := session{busy: true}, session{blockers: []blocker{{PID: 1}}}, session{}
	type poll struct {
		after   time.Duration
		session session
		known   bool
		want    bool
	}
	for name, polls := range map[string][]poll{
		"silent":             {{1, silent, true, false}, {1, silent, true, true}},
		"silent in between":  {{1, silent, true, false}, {1, working, true, false}, {1, silent, true, false}, {1, waiting, true, false}, {1, silent, true, false}},
		"waits for long":     {{limit, waiting, true, false}, {limit - 1, waiting, true, false}, {limit, waiting, true, false}},
		"works for long":     {{limit, working, true, false}, {limit, working, true, false}},
		"unknown":            {{1, silent, false, false}, {1, silent, false, false}, {limit - 3, silent, false, false}, {1, silent, false, true}},
		"unknown after work": {{limit, working, true, false}, {limit - 1, silent, false, false}, {1, silent, false, true}},
	} {
		now := time.Now()
		v := staleness{proof: now}
		for i, l := range polls {
			now = now.Add(l.after)
			if got := v.dead(l.session, l.known, now, limit); got != l.want {
				t.Errorf("%s: poll %d: dead: %v, want %v", name, i, got, l.want)
			}
		}
	}
}

// A session whose state the server hides from this role counts as busy: it is not known to
// be dead.
func TestHiddenSessionStateCountsAsBusy(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP ROLE `+role) })
	var conns [2]*sql.Conn
	for i := range conns {
		conn, err := d.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer pgdriver.Discard(conn)
		conns[i] = conn
	}
	querying, idle := conns[0], conns[1]
	for hidden, statement := range map[bool]string{false: `RESET ROLE`, true: `SET ROLE ` + role} {
		if _, err := querying.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if s, err := querySession(t.Context(), querying, pgdriver.PID(idle)); err != nil || s.busy != hidden {
			t.Errorf("after %s an idle session is busy: %v, want %v; %v", statement, s.busy, hidden, err)
		}
	}
}

// A proxy makes up pids, and half of them are out of PostgreSQL's range.
func TestMadeUpSession(t *testing.T) {
	t.Parallel()
	const madeUp = 1<<32 - 1
	if s, err := querySession(t.Context(), pgtest.Empty(t).DB, madeUp); err != nil || s.busy || len(s.blockers) > 0 {
		t.Errorf("a session that does not exist: %+v, %v", s, err)
	}
}
