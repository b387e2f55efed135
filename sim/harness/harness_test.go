package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSlownessIsClamped(t *testing.T) {
	for measured, want := range map[time.Duration]float64{0: 1, reference / 2: 1, reference: 1, 3 * reference: 3, 20 * reference: 20, time.Hour: MaxSlowness} {
		if got := slowness(measured); got != want {
			t.Errorf("%v is %g times as slow, want %g", measured, got, want)
		}
	}
}

func TestBoundsScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bounds{Slowness: rapid.Float64Range(1, MaxSlowness).Draw(t, "slowness")}
		d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "bound"))
		once, twice := b.Of(d), b.Times(2).Of(d)
		if want := time.Duration(b.Slowness * float64(d)); once != want {
			t.Fatalf("%v on a machine %g times as slow is %v, want %v", d, b.Slowness, once, want)
		}
		if once < d || (twice-2*once).Abs() > time.Microsecond || b.Times(0) != b.Times(1) || b.Times(1).Of(d) != once {
			t.Fatalf("%v is %v, with twice the patience %v", d, once, twice)
		}
	})
	if got := (Bounds{}).Of(time.Second); got != time.Second {
		t.Errorf("without a measurement a second is %v", got)
	}
}

func TestMeasure(t *testing.T) {
	server, err := pgx.ParseConfig(pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Measure(t.Context(), server)
	if err != nil || b.Slowness < 1 || b.Slowness > MaxSlowness {
		t.Errorf("%+v, %v", b, err)
	}
	server.Port, server.Fallbacks = 1, nil
	if _, err := Measure(t.Context(), server); !Is(err) {
		t.Errorf("without a server: %v, want an error of the harness", err)
	}
}

// A time-out of a call of the library is not the harness's: the library may hang. Nor is
// an error of which only a part is explained.
func TestExplain(t *testing.T) {
	copied := Failed("the copy", time.Second, fmt.Errorf("cp: %w", context.DeadlineExceeded))
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	connect := func(err error) error {
		config, wrong := pgconn.ParseConfig("host=127.0.0.1 sslmode=disable")
		if wrong != nil {
			t.Fatal(wrong)
		}
		config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, err }
		_, err = pgconn.ConnectConfig(t.Context(), config)
		return err
	}
	other := errors.New("an event was applied twice")
	timeout, wrong := &pgconn.PgError{Code: "57014"}, &pgconn.PgError{Code: "42601"}
	for _, c := range []struct {
		name string
		err  error
		step string // empty: not explained
	}{
		{"a failure of the harness", copied, "the copy"},
		{"one that is wrapped", fmt.Errorf("writer 3: %w", copied), "the copy"},
		{"two", errors.Join(refused, copied), "the copy"},
		{"a failure of the harness, and another", errors.Join(copied, wrong), ""},
		{"two that are wrapped", fmt.Errorf("writer 3: %w", errors.Join(refused, copied)), "the copy"},
		{"no server, and another", fmt.Errorf("writer 3: %w", errors.Join(refused, other)), ""},
		{"no server, and a call of the library that timed out", fmt.Errorf("writer 3: %w", errors.Join(refused, context.DeadlineExceeded)), ""},
		{"no server, and another, on one line", errtext.Join(refused, other), ""},
		{"no server, twice, on one line", errtext.Join(refused, refused), connecting},
		{"no server, and another, in one wrapper", fmt.Errorf("writer 3: %w", fmt.Errorf("%w after %w", other, refused)), ""},
		{"no server", fmt.Errorf("writer 3: %w", refused), connecting},
		{"no server, in the words of pgx", fmt.Errorf("writer 3: %w", connect(refused)), connecting},
		{"a login to a server whose connections are taken", fmt.Errorf("writer 3: %w", connect(&pgconn.PgError{Code: "53300"})), ""},
		{"a login that timed out", fmt.Errorf("writer 3: %w", connect(context.DeadlineExceeded)), ""},
		{"no server in time", fmt.Errorf("writer 3: %w", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}), ""},
		{"a server that shuts down", &pgconn.PgError{Code: "57P01"}, connecting},
		{"a server whose connections are taken", &pgconn.PgError{Code: "53300"}, ""},
		{"a server whose locks are taken", &pgconn.PgError{Code: "53200"}, ""},
		{"a server whose disk is full", &pgconn.PgError{Code: "53100"}, connecting},
		{"a connection that ended", io.ErrUnexpectedEOF, connecting},
		{"a statement of the library that timed out", fmt.Errorf("append: %w", timeout), ""},
		{"a call of the library that timed out", context.DeadlineExceeded, ""},
		{"a statement that is wrong", wrong, ""},
		{"a statement of the harness that timed out", Statement("a statement", time.Second, timeout), "a statement"},
		{"a statement of the harness without a server", Statement("a statement", time.Second, refused), "a statement"},
		{"a statement of the harness that is wrong", Statement("a statement", time.Second, wrong), ""},
		{"a statement of the harness that is wrong, and lost its connection", Statement("a statement", time.Second, errors.Join(other, refused)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Explain(c.err)
			if (e == nil) != (c.step == "") || e != nil && e.Step != c.step {
				t.Errorf("%v is explained by %+v, want %q", c.err, e, c.step)
			}
		})
	}
}

func TestErrorNamesStepBoundAndRemedy(t *testing.T) {
	err := Failed("the copy of the server", 30*time.Second, context.DeadlineExceeded)
	if want := "harness: the copy of the server took longer than 30s: context deadline exceeded; run it again with less load on the machine"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if again := Failed("the run", time.Hour, fmt.Errorf("x: %w", err)); Explain(again).Step != "the copy of the server" {
		t.Errorf("the first step that failed is hidden by %v", again)
	}
	if err := Failed("the copy", time.Second, errors.New("disk full")); Explain(err).Bound != 0 {
		t.Errorf("a failure that was no time-out has a bound: %v", err)
	}
}

// A part that the harness does not explain is a part of its step that failed.
func TestFailedExplainsEachPart(t *testing.T) {
	stop, other := Failed("the stop", time.Second, context.DeadlineExceeded), errors.New("no binaries")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"of two steps", errors.Join(stop, Failed("another", 0, other)), "the stop"},
		{"of a step and a statement without a server", errors.Join(stop, io.EOF), "the stop"},
		{"of a step and another error", errors.Join(stop, other), "the start"},
		{"that is wrapped", fmt.Errorf("x: %w", errors.Join(other, stop)), "the start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e := Explain(Failed("the start", time.Minute, c.err)); e == nil || e.Step != c.want {
				t.Errorf("%v is explained by %+v, want %q", c.err, e, c.want)
			}
		})
	}
}
