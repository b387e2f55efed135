package console_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops/console"
)

// stream is a viewer of live updates.
type stream struct {
	leave  func()
	events chan string // name and data of each; closed at the end
}

func (s *site) watch(t testing.TB, path string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Operator", "ann")
	client := &http.Client{Transport: &http.Transport{}}
	got, err := client.Do(r)
	if err != nil || got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %v, %v", path, got, err)
	}
	v := &stream{events: make(chan string, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(v.events)
		defer got.Body.Close()
		var event strings.Builder
		for lines := bufio.NewScanner(got.Body); lines.Scan(); {
			if lines.Text() != "" {
				event.WriteString(lines.Text() + "\n")
				continue
			}
			v.events <- event.String()
			event.Reset()
		}
	}()
	v.leave = func() {
		cancel()
		<-done
		client.CloseIdleConnections()
	}
	t.Cleanup(v.leave)
	return v
}

// next is the next event. ok is false at the end of the stream.
func (v *stream) next(t testing.TB) (event string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case event, ok = <-v.events:
		return event, ok
	case <-ctx.Done():
		t.Fatal("waited in vain for an event")
		return "", false
	}
}

// until reads events until one has a text.
func (v *stream) until(t testing.TB, text string) {
	t.Helper()
	for range 1_000 {
		event, ok := v.next(t)
		if !ok {
			t.Fatalf("the stream has ended before %q came", text)
		}
		if strings.Contains(event, text) {
			return
		}
	}
}

// Viewers see what changes. One goroutine reads for all of them, and none without viewers.
func TestLive(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	var looks atomic.Int64
	s.CountLooks(func() { looks.Add(1) })
	s.append(t, happened(5)...)
	s.place(t, "c", 2)
	for _, page := range []string{"", "consumer?name=c", "workers", "blocked"} {
		s.get(t, page).expect(t, http.StatusOK)
	}
	if n, runs := s.Viewers(); n != 0 || runs || looks.Load() != 0 {
		t.Errorf("without a viewer: %d viewers, reads: %v, %d reads", n, runs, looks.Load())
	}
	pages := map[string]*stream{}
	marks := map[string]string{"live?page=": `<svg class="log"`, "live?page=consumer&name=c": `<dl class="facts">`, "live?page=workers": `aria-label="Workers"`, "live?page=blocked": `aria-label="Open transactions"`}
	for page := range marks {
		pages[page] = s.watch(t, page)
	}
	for page, v := range pages {
		event, ok := v.next(t)
		if !ok || !strings.HasPrefix(event, "event: state\ndata: ") || !strings.Contains(event, "data-summary") || !strings.Contains(event, marks[page]) || strings.Contains(event, "<html") || strings.Contains(event, `method="post"`) {
			t.Errorf("%s: %v %q", page, ok, event)
		}
	}
	if n, runs := s.Viewers(); n != 4 || !runs {
		t.Errorf("%d viewers, reads: %v", n, runs)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 4`)
	pages["live?page="].until(t, `<td class="n">4</td>`)
	pages["live?page=consumer&name=c"].until(t, `<dd class="n">4</dd>`)
	for _, v := range pages {
		v.leave()
	}
	await(t, "the end of the goroutine", func() bool { n, runs := s.Viewers(); return n == 0 && !runs })
	again := s.watch(t, "live?page=")
	again.until(t, `<td class="n">4</td>`)
	s.get(t, "live?page=letters").expect(t, http.StatusNotFound)

	s.Close()
	for ok := true; ok; {
		_, ok = again.next(t)
	}
	if n, runs := s.Viewers(); n != 0 || runs {
		t.Errorf("after Close: %d viewers, reads: %v", n, runs)
	}
	s.get(t, "live?page=").expect(t, http.StatusNoContent)
	s.get(t, "").expect(t, http.StatusOK)
}

// Two viewers of the same kind of page, at other consumers, each see their own.
func TestLiveOfTwoConsumers(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	s.place(t, "d", 0)
	viewers := map[string]*stream{}
	for _, name := range []string{"c", "d"} {
		viewers[name] = s.watch(t, "live?page=consumer&name="+name)
	}
	for range 2 { // they share a sample at the latest at the second
		for name, v := range viewers {
			if event, _ := v.next(t); !strings.Contains(event, `data-summary="`+name+` is `) {
				t.Errorf("%s: %s", name, event)
			}
		}
	}
}

// Updates outlive the limits that a server has for other answers, a request for their head
// only ends at once, and their number is bounded.
func TestLiveLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	limited := httptest.NewUnstartedServer(http.StripPrefix(prefix, s.Console))
	limited.Config.ReadTimeout, limited.Config.WriteTimeout = time.Second, time.Second
	limited.Start()
	t.Cleanup(limited.Close)
	unlimited := s.base
	s.base = limited.URL + prefix + "/"
	v := s.watch(t, "live?page=")
	s.base = unlimited
	for range 3 { // two seconds lie between them
		if event, ok := v.next(t); !ok {
			t.Fatalf("the updates have ended, after %q", event)
		}
	}
	s.do(t, http.MethodHead, "live?page=", nil).expect(t, http.StatusOK)
	for range console.MaxViewers - 1 {
		s.watch(t, "live?page=workers")
	}
	if got := s.get(t, "live?page=").expect(t, http.StatusServiceUnavailable); !strings.Contains(got.body, "load it again") {
		t.Error(got.body)
	}
	v.leave()
	await(t, "a place", func() bool { n, _ := s.Viewers(); return n < console.MaxViewers })
	s.watch(t, "live?page=")
}

// leaving is a viewer who leaves at the first update.
type leaving struct {
	*httptest.ResponseRecorder
	leave    func()
	deadline time.Time // of the connection
}

func (l *leaving) Write(text []byte) (int, error) {
	l.leave()
	return l.ResponseRecorder.Write(text)
}

func (l *leaving) SetWriteDeadline(at time.Time) error {
	l.deadline = at
	return nil
}

// The connection of a viewer who has left is as it was: it may serve another request, much later.
func TestLiveLeavesTheConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v := &leaving{httptest.NewRecorder(), cancel, time.Time{}}
	s.ServeHTTP(v, httptest.NewRequestWithContext(ctx, http.MethodGet, "/live?page=", nil))
	if v.Body.Len() == 0 || !v.deadline.IsZero() {
		t.Errorf("after %q the connection has the deadline %v", v.Body, v.deadline)
	}
}

// Viewers hear that the database is away, and see how it stands when it is back. Texts
// cannot make up events.
func TestLiveAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid) VALUES (gen_random_uuid(), '{c}', E'h\r\revent: forged\rdata: x\n\nevent: forged', 1)`)
	v := s.watch(t, "live?page=workers")
	event, _ := v.next(t)
	for line := range strings.SplitSeq(strings.ReplaceAll(event, "\r", "\n"), "\n") {
		if strings.HasPrefix(line, "event: forged") {
			t.Errorf("a host name has made up an event: %q", event)
		}
	}
	s.Exec(t, `ALTER TABLE consumer_checkpoints RENAME TO gone`)
	v.until(t, "event: away\n")
	s.Exec(t, `ALTER TABLE gone RENAME TO consumer_checkpoints`)
	v.until(t, "event: state\n")
}
