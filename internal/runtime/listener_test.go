package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// listening is a Listener of a database, with its reports.
type listening struct {
	*Listener
	failed chan error
	over   chan observe.Recovered
	downs  chan struct{}
}

func startListening(t *testing.T, d *pgtest.Database, listensAt string, again int) listening {
	t.Helper()
	l := listening{failed: make(chan error, 100), over: make(chan observe.Recovered, 100), downs: make(chan struct{}, 1000)}
	connected := make(chan struct{}, 1)
	l.Listener = &Listener{
		Package: "worker", Of: "events", ConnString: listensAt, Echo: "echo", Every: 100 * time.Millisecond, EchoAgain: again,
		Observers: NewObservers(observe.Worker{}, nil, []observe.Observer{observe.On(func(e observe.NotifyFailed) { l.failed <- e.Err }), observe.On(func(r observe.Recovered) { l.over <- r })}),
		Exec: func(ctx context.Context, query string, args ...any) error {
			_, err := d.DB.ExecContext(ctx, query, args...)
			return err
		},
		Down: func() { l.downs <- struct{}{} },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.Run(ctx, map[string]func(string){"other": func(string) {
			select {
			case connected <- struct{}{}:
			default:
			}
		}})
	}()
	<-connected
	watched := make(chan struct{})
	go func() { defer close(watched); l.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-watched
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// await returns the first value of a channel.
func await[T any](t *testing.T, c chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(pgtest.Patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// awaitEcho waits until notifications are known to arrive.
func (l listening) awaitEcho(t *testing.T) {
	t.Helper()
	if !pgtest.Poll(func() bool { return !l.IsDown() }) {
		t.Fatal("waited in vain for an echo")
	}
}

// A listening connection that dies silently is distinguished from one to another database,
// and is replaced.
func TestListenerReplacesSilentConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	way := startWay(t, d.URL)
	l := startListening(t, d, way.url, 10)
	l.awaitEcho(t)
	way.swallow()
	if err := await(t, l.failed, "the loss of the connection"); !strings.Contains(err.Error(), "does not answer") || strings.Contains(err.Error(), "\n") {
		t.Errorf("reported %v", err)
	}
	if r := await(t, l.over, "the end of the condition"); r.Condition != observe.ConditionNotify || r.Detail != "connection" || r.Err == nil {
		t.Errorf("reported the end of %+v", r)
	}
	l.awaitEcho(t)
	if err := l.Err(); err != nil {
		t.Errorf("the error is %v", err)
	}
}

// A Listener in another database reports this once. It calls Down in each check.
func TestListenerInAnotherDatabase(t *testing.T) {
	t.Parallel()
	l := startListening(t, pgtest.Empty(t), pgtest.Empty(t).URL, 0)
	err := await(t, l.failed, "the report")
	if want := "worker: notifications do not arrive: WithNotifyConnectionString leads to another server or database"; !strings.HasPrefix(err.Error(), want) || !errors.Is(l.Err(), err) {
		t.Errorf("reported %v, the error is %v", err, l.Err())
	}
	for len(l.downs) > 0 {
		<-l.downs
	}
	for range 3 {
		await(t, l.downs, "a check after the report")
	}
	if len(l.failed) > 0 || !l.IsDown() {
		t.Errorf("reported again %v, down: %v", len(l.failed), l.IsDown())
	}
}

// Notifications are known to arrive once an echo has arrived on the connection, and until an
// echo is overdue, the connection is lost or a check finds that they do not arrive.
func TestListenerIsDown(t *testing.T) {
	t.Parallel()
	arrives := func(l *Listener) { l.ConnString, l.echoed = "x", true }
	for what, c := range map[string]struct {
		change func(*Listener)
		down   bool
	}{
		"it does not listen":    {func(l *Listener) { l.ConnString, l.echoed = "", false }, false},
		"an echo has arrived":   {func(*Listener) {}, false},
		"before the first echo": {func(l *Listener) { l.echoed = false }, true},
		"an echo is overdue":    {func(l *Listener) { l.doubt = true }, true},
		"nothing has arrived":   {func(l *Listener) { l.silent = errors.New("nothing arrives") }, true},
	} {
		l := &Listener{}
		arrives(l)
		if c.change(l); l.IsDown() != c.down {
			t.Errorf("%s: down is %t", what, !c.down)
		}
	}
}

// way is a proxy to the server whose connections can die silently.
type way struct {
	url   string
	mu    sync.Mutex
	conns []net.Conn
	dead  []*atomic.Bool
	wg    sync.WaitGroup
}

func startWay(t *testing.T, to string) *way {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal("the connection string is no URL")
	}
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = listener.Addr().String()
	w := &way{url: u.String()}
	w.wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				near.Close()
				continue
			}
			w.join(near, far)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

// join forwards what each side sends, until their connection is dead.
func (w *way) join(near, far net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	dead := new(atomic.Bool)
	w.conns, w.dead = append(w.conns, near, far), append(w.dead, dead)
	for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
		w.wg.Go(func() {
			_, _ = io.Copy(deafWriter{to, dead}, from)
			if !dead.Load() {
				to.Close()
			}
		})
	}
}

// swallow makes all present connections die silently. New ones work.
func (w *way) swallow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, dead := range w.dead {
		dead.Store(true)
	}
}

// deafWriter drops all writes once it is dead.
type deafWriter struct {
	to   io.Writer
	dead *atomic.Bool
}

func (d deafWriter) Write(b []byte) (int, error) {
	if d.dead.Load() {
		return len(b), nil
	}
	return d.to.Write(b)
}
