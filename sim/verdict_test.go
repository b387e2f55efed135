package sim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// slowCopy is a server whose copies take longer than the harness waits, whose time is over at
// once.
type slowCopy struct{ *embedded.Server }

func (s slowCopy) Save(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	return s.Server.Save(ctx)
}

// A copy of the server that takes too long is the harness's failure, and leaves the server
// down.
func TestRunIsNotJudgedWhenTheCopyTakesTooLong(t *testing.T) {
	t.Parallel()
	c := small(t)
	server := pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "8"})
	c.URL, c.Server = server.URL(""), slowCopy{server}
	c.Faults = Intensities{"rollback": 1, "stale": 1, "restore": 10}
	c.Duration = time.Minute // the copy ends it
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Outcome != oracle.NotJudged || !strings.HasPrefix(r.Verdict, "NOT JUDGED: the copy of the server took longer than ") {
		t.Errorf("%q: %s\n%+v", r.Outcome, r.Verdict, r.Invariants)
	}
}

func TestRunWithoutAServerIsNotJudged(t *testing.T) {
	t.Parallel()
	for name, jobs := range map[string]bool{"events": false, "jobs": true} {
		t.Run(name, func(t *testing.T) {
			c := small(t)
			c.URL, c.Jobs, c.Faults = "postgres://user:hunter2@127.0.0.1:1/?connect_timeout=5", jobs, nil
			r, err := Run(t.Context(), c)
			if err != nil || r == nil || r.Outcome != oracle.NotJudged {
				t.Fatalf("%+v, %v; want a run that was not judged", r, err)
			}
			var b strings.Builder
			if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "verdict: NOT JUDGED: measuring the machine failed") || strings.Contains(b.String(), "hunter2") {
				t.Errorf("%v\n%s", err, b.String())
			}
		})
	}
}

// TestRunIsRepeatedOnce makes the second run if, and only if, the first was not judged.
func TestRunIsRepeatedOnce(t *testing.T) {
	t.Parallel()
	report := func(o oracle.Outcome, step string) *oracle.Report {
		r := &oracle.Report{}
		e := &history.Evidence{Consumers: []history.Scope{{Name: "all"}}, History: history.Of(nil), Incomplete: true, Unread: true}
		switch o {
		case oracle.NotJudged:
			e.Harness = &history.HarnessFailure{Step: step, Error: "no route"}
		case oracle.Broken:
			e.Failures = []string{"a call failed"}
		}
		r.Judge(e)
		if o == oracle.Held {
			r.Outcome = o // nothing was checked
		}
		return r
	}
	noServer := errors.New("no server")
	for _, c := range []struct {
		first, second oracle.Outcome
		err           error // of the second
		want          oracle.Outcome
		wantErr       error
		runs          int
	}{
		{first: oracle.Held, want: oracle.Held, runs: 1},
		{first: oracle.Broken, want: oracle.Broken, runs: 1},
		{first: oracle.NotJudged, second: oracle.Held, want: oracle.Held, runs: 2},
		{first: oracle.NotJudged, second: oracle.Broken, want: oracle.Broken, runs: 2},
		{first: oracle.NotJudged, second: oracle.NotJudged, want: oracle.NotJudged, runs: 2},
		{first: oracle.NotJudged, err: noServer, want: oracle.NotJudged, runs: 2},
		{first: oracle.NotJudged, err: context.Canceled, wantErr: context.Canceled, runs: 2},
	} {
		var patience []float64
		r, err := Judged(func(p float64) (*oracle.Report, error) {
			patience = append(patience, p)
			switch {
			case len(patience) == 1:
				return report(c.first, "the copy"), nil
			case c.err != nil:
				return nil, c.err
			}
			return report(c.second, "the start"), nil
		})
		if len(patience) != c.runs || !errors.Is(err, c.wantErr) || c.wantErr == nil && r.Outcome != c.want {
			t.Errorf("%+v: %d runs, %+v, %v", c, len(patience), r, err)
		}
		if len(patience) == 2 && patience[1] != 2*patience[0] {
			t.Errorf("%+v: the harness waited %v times as long", c, patience)
		}
		if c.want == oracle.NotJudged && !strings.Contains(r.Verdict, "twice: the copy failed: no route; then the ") {
			t.Errorf("%+v: the verdict is %q", c, r.Verdict)
		}
	}
}
