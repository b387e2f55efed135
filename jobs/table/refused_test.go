package table_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// refusing are ways in which a table refuses the new state %s of a row for which odd is true. The
// trigger is removed last: mend removes everything.
var refusing = map[string]string{
	"a constraint":        `ALTER TABLE example_jobs ADD CONSTRAINT odd CHECK (NOT ({odd}))`,
	"a trigger":           trigger(`RAISE EXCEPTION 'odd'`),
	"a code of a user":    trigger(`RAISE EXCEPTION 'odd' USING ERRCODE = 'ZZ001'`),
	"a trigger of theirs": trigger(`RAISE EXCEPTION 'odd' USING ERRCODE = 'triggered_action_exception'`),
	"silence":             trigger(`RETURN NULL`),
	"a policy": `ALTER TABLE example_jobs ENABLE ROW LEVEL SECURITY;
		CREATE POLICY odd ON example_jobs USING (true) WITH CHECK (NOT ({odd}))`,
}

func trigger(does string) string {
	return `CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT {odd} FROM (SELECT NEW.*) AS x) THEN ` + does + `; END IF; RETURN NEW; END $$;
		CREATE TRIGGER odd BEFORE UPDATE ON example_jobs FOR EACH ROW EXECUTE FUNCTION odd()`
}

const mend = `ALTER TABLE example_jobs DROP CONSTRAINT IF EXISTS odd;
	DROP TRIGGER IF EXISTS odd ON example_jobs;
	DROP POLICY IF EXISTS odd ON example_jobs;
	ALTER TABLE example_jobs DISABLE ROW LEVEL SECURITY`

// refuse makes the table refuse rows for which odd is true. It returns the database of a role to
// which policies apply.
func (s *stage) refuse(how, odd string) *pgtest.Database {
	s.t.Helper()
	s.script(strings.ReplaceAll(how, "{odd}", odd))
	role := s.text(`SELECT right(current_database(), 20)::text`) + "_minds"
	s.script(`CREATE ROLE ` + ident.Quote(role) + `; GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + ident.Quote(role))
	s.t.Cleanup(func() { s.script(`DROP OWNED BY ` + ident.Quote(role) + `; DROP ROLE ` + ident.Quote(role)) })
	u, err := url.Parse(s.d.URL)
	if err != nil {
		s.t.Fatal("the connection string is no URL")
	}
	query := u.Query()
	query.Set("options", "-crole="+role) // drivers encode a space differently
	u.RawQuery = query.Encode()
	return &pgtest.Database{URL: u.String()}
}

// openPGX opens a pool with the other driver.
func (s *stage) openPGX(d *pgtest.Database) *sql.DB {
	s.t.Helper()
	db, err := sql.Open("pgx", d.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = db.Close() })
	return db
}

// script runs statements.
func (s *stage) script(sql string) {
	s.t.Helper()
	db := s.d.OpenPQ(s.t)
	defer db.Close()
	if _, err := db.ExecContext(context.WithoutCancel(s.t.Context()), sql); err != nil {
		s.t.Fatalf("%v, in\n%s", err, sql)
	}
}

// hears records what an Observer is notified of failures.
func (s *stage) hears(o *table.WorkerOptions) {
	o.Observers = []observe.Observer{
		observe.On(func(f observe.StatementFailed) {
			s.note("failed %s %d", f.Condition, f.Row)
			if !strings.HasSuffix(f.Table, "example_jobs") {
				s.t.Errorf("the table is %q", f.Table)
			}
		}),
		observe.On(func(r observe.Recovered) { s.note("recovered %s", r.Condition) }),
	}
}

// Rows that the table refuses to have in processing do not delay other rows, however many of them
// come first. They are reported, and run once the table allows it.
func TestRowsThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	for name, how := range refusing {
		for _, handlers := range []int{1, 7, 8} {
			t.Run(fmt.Sprint(name, " ", handlers), func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				d := s.refuse(how, "repository_id IN (1, 2, 3, 12) AND state = 'processing'")
				db := s.openPGX(d)
				switch handlers {
				case 1:
					db = d.OpenPQ(t)
				case 8:
					s.h.PreDequeue = func(context.Context) (bool, table.Condition, error) {
						return true, table.Condition{SQL: "j.repository_id < $1", Args: []any{100}}, nil
					}
				}
				db.SetMaxIdleConns(10)
				s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 20) AS i`)
				w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = handlers; s.hears(o) })
				s.start(w)
				s.until("the others to complete", func() bool {
					return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "16"
				})
				s.until("the refusals to show", func() bool {
					st := w.Status()
					err := st.ClaimError
					return err != nil && st.Refused.Claim == 4 && strings.Contains(err.Error(), "claim of job ") && strings.Contains(err.Error(), "mend the row") && strings.Contains(err.Error(), "(and 3 more rows)")
				})
				s.want("failures", "0", `SELECT sum(num_failures + num_resets)::text FROM example_jobs`)
				// A claim that meets only refused rows cannot know whether they are the cause. It
				// fails as a whole once more.
				got := slices.DeleteFunc(s.notes(), func(note string) bool { return note == "failed claim 0" || !strings.HasPrefix(note, "failed claim ") })
				slices.Sort(got)
				want := []string{"failed claim 1", "failed claim 12", "failed claim 2", "failed claim 3"}
				if !slices.Equal(got, want) {
					t.Errorf("reported %q, want %q", got, want)
				}
				s.script(mend)
				s.until("all to complete", func() bool {
					return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "20"
				})
				s.until("the trouble to be over", func() bool {
					return w.Status().ClaimError == nil && w.Status().Refused.Claim == 0 && slices.Contains(s.notes(), "recovered claim")
				})
			})
		}
	}
}

// At most a thousand rows are left out. With more refused rows claims fail until the table accepts
// them.
func TestTooManyRowsThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.openPGX(s.refuse(refusing["silence"], "repository_id = 1 AND state = 'processing'"))
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i / 1010 FROM generate_series(1, 1020) AS i`)
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 100 })
	s.start(w)
	s.until("that to be reported", func() bool {
		err := w.Status().ClaimError
		return err != nil && strings.Contains(err.Error(), "more than 1000 rows are refused, the last one: ")
	})
	s.script(mend)
	s.until("all to complete", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "1020"
	})
	s.until("the trouble to be over", func() bool { return w.Status().ClaimError == nil })
}

// A row whose heartbeat is refused ends no other run. Its own run ends when the row is reset.
func TestRowsWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	for name, how := range refusing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			db := s.openPGX(s.refuse(how, "repository_id IN (2, 5) AND state = 'processing' AND last_heartbeat_at > started_at + interval '20 milliseconds'"))
			s.o.StalledMaxAge = 4 * time.Second
			release := make(chan struct{})
			s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
				s.note("runs %s", j.Record.Repository)
				select {
				case <-ctx.Done():
					s.note("%s: %v", j.Record.Repository, context.Cause(ctx))
				case <-release:
				}
				return ctx.Err()
			}
			s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 6) AS i`)
			w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 10; s.hears(o) })
			s.start(w)
			other := `SELECT last_heartbeat_at::text FROM example_jobs WHERE repository_id = 6`
			for range 3 {
				before := ""
				s.until("all to run", func() bool { before = s.text(`SELECT coalesce((` + other + `), '')`); return before != "" })
				s.until("heartbeats of the others", func() bool { return s.text(other) != before })
			}
			s.until("the refusals to show", func() bool {
				err := w.Status().HeartbeatError
				return err != nil && strings.Contains(err.Error(), "heartbeat of job ") && strings.Contains(err.Error(), "(and 1 more rows)")
			})
			s.until("the worker to be ready all the same", func() bool { return len(w.Ready(t.Context(), 0)) == 0 && w.Status().Refused.Heartbeat == 2 })
			reported := s.notes() // when both are reset, the condition is over
			s.until("both to be reset", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE repository_id IN (2, 5) AND num_resets = 1`) == "2"
			})
			s.want("resets of the others", "0", `SELECT sum(num_resets)::text FROM example_jobs WHERE repository_id NOT IN (2, 5)`)
			// A heartbeat may also fail as a whole: each refusal makes it longer, and its time is
			// bounded.
			if !slices.Contains(reported, "failed heartbeat 2") || !slices.Contains(reported, "failed heartbeat 5") || slices.Contains(reported, "recovered heartbeat") {
				t.Errorf("reported %q", reported)
			}
			s.script(mend)
			close(release)
			s.until("all to complete", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "6"
			})
			s.until("the trouble to be over", func() bool { return w.Status().HeartbeatError == nil })
		})
	}
}

// A row that cannot be reset does not keep other rows from a reset.
func TestRowsThatCannotBeReset(t *testing.T) {
	t.Parallel()
	for name, how := range refusing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			db := s.openPGX(s.refuse(how, "repository_id IN (2, 5) AND num_resets > 0"))
			s.o.StalledMaxAge = 2 * time.Second
			for i := range 6 {
				s.add(`(repository_id, state, worker_hostname, last_heartbeat_at) VALUES (` + fmt.Sprint(i+1) + `, 'processing', 'gone/1', now() - interval '1 hour')`)
			}
			w := s.worker(db, s.hears)
			s.start(w)
			s.until("the others to complete", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed' AND num_resets = 1`) == "4"
			})
			s.until("the refusals to show", func() bool {
				st := w.Status()
				err := st.ResetError
				return err != nil && st.Refused.Reset == 2 && strings.Contains(err.Error(), "reset of job 2: example_jobs refuses it") && strings.Contains(err.Error(), "(and 1 more rows)")
			})
			s.until("the worker to be ready all the same", func() bool { return len(w.Ready(t.Context(), 0)) == 0 })
			n := slices.DeleteFunc(s.notes(), func(note string) bool { return !strings.HasPrefix(note, "failed reset ") })
			if slices.Sort(n); !slices.Equal(n, []string{"failed reset 2", "failed reset 5"}) {
				t.Errorf("reported %q", n)
			}
			s.script(mend)
			s.until("all to complete", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "6"
			})
			s.until("the trouble to be over", func() bool { return w.Status().ResetError == nil })
		})
	}
}

// A row that cannot be stored as completed has failed, also if a trigger refuses it silently.
func TestRowsThatStayAsTheyAre(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.openPGX(s.refuse(refusing["silence"], "repository_id = 3 AND state = 'completed' OR repository_id = 4 AND state NOT IN ('queued', 'processing')"))
	s.o.StalledMaxAge = 600 * time.Millisecond
	s.o.MaxNumResets = 100
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		if j.Record.Repository != "repo 5" {
			return nil
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE example_jobs SET repository_id = 4 WHERE id = $1`, j.ID); err != nil {
			return err
		}
		err = j.CompleteTx(ctx, tx)
		s.note("%v", err)
		return table.NonRetryable(tx.Rollback())
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 10) AS i`)
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 20 })
	s.start(w)
	s.until("the others to end", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "7"
	})
	s.until("those that are refused to fail", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'failed' AND (repository_id = 5 OR failure_message LIKE '%must return NEW%')`) == "2"
	})
	s.until("the refusal to show", func() bool {
		err := w.Status().SettleError
		return err != nil && strings.Contains(err.Error(), "settle of job 4: ") && strings.Contains(err.Error(), "must return NEW")
	})
	n := s.notes() // several, if the row was reset meanwhile
	if len(n) == 0 || slices.ContainsFunc(n, func(note string) bool {
		return !strings.Contains(note, "complete job 5: a trigger or a rule leaves the row unchanged")
	}) {
		t.Errorf("CompleteTx: %q", n)
	}
	s.script(mend)
	s.until("all to end", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "8"
	})
}

// A missing privilege does not count as a refusal of rows.
func TestPrivilegeThatGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.openPGX(s.refuse(refusing["a policy"], "false"))
	w := s.worker(db, s.hears)
	s.start(w)
	s.becomes(s.add(""), table.StateCompleted)
	role := s.text(`SELECT right(current_database(), 20)::text`) + "_minds"
	s.d.Exec(t, `REVOKE UPDATE ON example_jobs FROM `+ident.Quote(role))
	s.d.Exec(t, `GRANT UPDATE (last_heartbeat_at) ON example_jobs TO `+ident.Quote(role))
	id := s.add("")
	s.until("the trouble to show", func() bool {
		err := w.Status().ClaimError
		return err != nil && strings.Contains(err.Error(), "claim rows of example_jobs")
	})
	s.d.Exec(t, `GRANT UPDATE ON example_jobs TO `+ident.Quote(role))
	s.becomes(id, table.StateCompleted)
	n := s.notes()
	if !slices.Contains(n, "failed claim 0") || slices.ContainsFunc(n, func(note string) bool {
		return strings.HasPrefix(note, "failed") && !strings.HasSuffix(note, " 0")
	}) {
		t.Errorf("reported %q", n)
	}
}

// A trigger lacks a function for some rows. These rows do not delay others, also if one slot claims
// row after row. A job whose end is refused has failed.
func TestRowsWhoseTriggerLacksAFunction(t *testing.T) {
	t.Parallel()
	for handlers, odd := range map[int]string{1: "repository_id IN (1, 2) AND state = 'processing'", 5: "repository_id IN (3, 7) AND state = 'completed'"} {
		t.Run(fmt.Sprint(handlers), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.refuse(trigger(`PERFORM lacking()`), odd)
			s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 10) AS i`)
			w := s.worker(s.d.DB, func(o *table.WorkerOptions) { o.NumHandlers = handlers; s.hears(o) })
			s.start(w)
			s.until("the others to complete", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "8"
			})
			if handlers > 1 {
				s.until("the refused ones to have failed", func() bool {
					return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'failed' AND failure_message LIKE '%lacking()%'`) == "2"
				})
				return
			}
			s.until("the refusals to show", func() bool {
				err := w.Status().ClaimError
				return err != nil && strings.Contains(err.Error(), "lacking()")
			})
			s.script(mend)
			s.until("all to complete", func() bool {
				return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed'`) == "10"
			})
			s.want("failures", "0", `SELECT sum(num_failures + num_resets)::text FROM example_jobs`)
		})
	}
}

// The end of one job is refused with an error that may be about the whole statement, and no other
// job shows that it is not. If only this outcome is refused, the job has failed. If every outcome
// is, or this one is refused once, its end is stored later.
func TestLoneEndThatIsRefused(t *testing.T) {
	t.Parallel()
	for odd, want := range map[string]string{
		"state = 'completed'":                             "failed 1",
		"state IN ('completed', 'failed')":                "completed 0, mended",
		"state = 'completed' AND nextval('refusals') = 1": "completed 0",
	} {
		t.Run(odd, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.d.Exec(t, `CREATE SEQUENCE refusals`)
			s.refuse(trigger(`PERFORM lacking()`), odd)
			w := s.worker(s.d.DB, nil)
			s.start(w)
			id := s.add("")
			want, mended := strings.CutSuffix(want, ", mended")
			if mended {
				s.until("the refusal to show", func() bool { return w.Status().SettleError != nil })
				s.script(mend)
			}
			s.until("the job to end", func() bool {
				return s.text(`SELECT state || ' ' || num_failures FROM example_jobs WHERE id = $1`, id) == want
			})
		})
	}
}

// A privilege that goes while a job runs does not fail the job.
func TestPrivilegeThatGoesBeforeAnEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.openPGX(s.refuse(refusing["a policy"], "false"))
	role := ident.Quote(s.text(`SELECT right(current_database(), 20)::text`) + "_minds")
	s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error {
		_, err := s.d.DB.ExecContext(ctx, `REVOKE UPDATE ON example_jobs FROM `+role)
		return err
	}
	w := s.worker(db, nil)
	s.start(w)
	id := s.add("")
	s.until("the trouble to show", func() bool { return w.Status().SettleError != nil })
	s.d.Exec(t, `GRANT UPDATE ON example_jobs TO `+role)
	s.becomes(id, table.StateCompleted)
	s.want("failures", "0", `SELECT num_failures::text FROM example_jobs`)
}

// An error text that the database's encoding does not hold is stored with escapes.
func TestErrorThatTheEncodingDoesNotHold(t *testing.T) {
	t.Parallel()
	s := &stage{t: t, d: pgtest.Latin1(t), o: options()}
	s.d.Exec(t, schema)
	s.h.Handle = func(context.Context, *table.Job[example]) error {
		return errors.New("caf\u00e9: \u5931\u6557 \U0001f600")
	}
	s.o.MaxNumRetries, s.o.RetryAfter = 0, 0
	id := s.add("")
	s.run(nil)
	s.becomes(id, table.StateFailed)
	if text := s.text(`SELECT failure_message FROM example_jobs WHERE id = $1`, id); !strings.Contains(text, `caf\u00e9: \u5931\u6557 \U0001f600`) {
		t.Errorf("the row says %q", text)
	}
}
