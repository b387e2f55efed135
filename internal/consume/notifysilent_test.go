package consume

import (
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A listening connection that dies silently is distinguished from one to another database,
// and is replaced.
func TestReplacesSilentListeningConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	way := startWay(t, d.URL)
	l := startListening(t, d, way.url, 300*time.Millisecond)
	for deadline := time.Now().Add(pgtest.Patience); !l.listener.hearing().Connected; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for the listening connection")
		}
	}
	way.swallow()
	if err := l.saysWhileAppending(t, d, "worker_events"); !strings.Contains(err.Error(), "does not answer") || strings.Contains(err.Error(), "\n") {
		t.Errorf("reported %v", err)
	}
	l.awaitOver(t)
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
