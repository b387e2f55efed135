package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe/health"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var _, _ health.Worker = (*worker.Worker)(nil), (*jobs.Worker)(nil)

// said answers as it is told.
type said struct {
	live   error
	ready  []error
	maxAge time.Duration
	left   time.Duration // of the time that Ready was given
	ended  error         // of Ready's context
}

func (s *said) Live() error { return s.live }

func (s *said) Ready(ctx context.Context, maxAge time.Duration) []error {
	s.maxAge, s.ended = maxAge, ctx.Err()
	if deadline, is := ctx.Deadline(); is {
		s.left = time.Until(deadline)
	}
	return s.ready
}

func TestAnswers(t *testing.T) {
	two := []error{errors.New("first\nof two lines"), errors.New(`a "second"`)}
	for name, c := range map[string]struct {
		probe  http.Handler
		accept string
		code   int
		body   string
	}{
		"live":            {health.Live(&said{ready: two}), "", 200, "ok\n"},
		"live, JSON":      {health.Live(&said{}), "application/json", 200, "{}\n"},
		"not live":        {health.Live(&said{live: two[1]}), "*/*", 503, "a \"second\"\n"},
		"ready":           {health.Ready(&said{live: two[0]}, 1), "", 200, "ok\n"},
		"not ready":       {health.Ready(&said{ready: two}, 1), "", 503, "first of two lines\na \"second\"\n"},
		"not ready, JSON": {health.Ready(&said{ready: two}, 1), "text/html, application/json;q=0.9", 503, `{"reason":"first of two lines"}` + "\n" + `{"reason":"a \"second\""}` + "\n"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", c.accept)
		answer := httptest.NewRecorder()
		c.probe.ServeHTTP(answer, r)
		if answer.Code != c.code || answer.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", name, answer.Code, answer.Body, c.code, c.body)
		}
		kind := "text/plain; charset=utf-8"
		if strings.Contains(name, "JSON") {
			kind = "application/json"
		}
		for header, want := range map[string]string{"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
			if is := answer.Header().Get(header); is != want {
				t.Errorf("%s: %s is %q, want %q", name, header, is, want)
			}
		}
	}
}

// A probe that nobody waits for any more ends by itself.
func TestReadyIsBounded(t *testing.T) {
	s := &said{}
	health.Ready(s, 1).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if s.left <= 0 || s.left > 10*time.Second {
		t.Errorf("Ready has %v left, want 10s", s.left)
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	health.Ready(s, 1).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(left, http.MethodGet, "/", nil))
	if !errors.Is(s.ended, context.Canceled) {
		t.Errorf("Ready goes on after its prober has left: %v", s.ended)
	}
}

func TestMaxAge(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{time.Second: time.Second, 0: 5 * time.Minute, -1: 5 * time.Minute} {
		s := &said{}
		health.Ready(s, given).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		if s.maxAge != want {
			t.Errorf("%v is taken for %v, want %v", given, s.maxAge, want)
		}
	}
}

// Several workers are live or ready if all are, and are asked at the same time.
func TestAll(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	for _, c := range []struct {
		of    []health.Worker
		live  string
		ready []error
	}{
		{nil, "", nil},
		{[]health.Worker{&said{}, &said{}}, "", nil},
		{[]health.Worker{&said{}, &said{live: first, ready: []error{first, second}}}, "first", []error{first, second}},
		{[]health.Worker{&said{live: first, ready: []error{first}}, &said{live: second, ready: []error{second}}}, "first; second", []error{first, second}},
	} {
		all := health.All(c.of...)
		if err := all.Live(); (err == nil) != (c.live == "") || err != nil && err.Error() != c.live {
			t.Errorf("live: %v, want %q", err, c.live)
		}
		if got := all.Ready(t.Context(), time.Minute); !slices.Equal(got, c.ready) {
			t.Errorf("ready: %v, want %v", got, c.ready)
		}
	}
	a, b := make(chan bool), make(chan bool)
	together := health.All(meets{a, b}, meets{b, a})
	if got := together.Ready(t.Context(), time.Minute); len(got) > 0 {
		t.Error(got)
	}
}

// meets waits in Ready until another worker is asked, too.
type meets struct{ mine, others chan bool }

func (meets) Live() error { return nil }

func (m meets) Ready(ctx context.Context, _ time.Duration) []error {
	go func() { m.mine <- true }()
	select {
	case <-m.others:
		return nil
	case <-time.After(time.Minute):
		return []error{errors.New("nobody else was asked")}
	}
}
