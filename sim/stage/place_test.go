package stage

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
)

// ended is a worker that has ended before it ran.
type ended struct{ *Machine }

func (e ended) Ready(context.Context) bool { return false }

func (e ended) Broke() bool { return false }

func (e ended) Stop() {}

func (e ended) Await(asked string) history.Exit { return e.AwaitEnd(asked, time.Second) }

// A worker that says it did not reach the server is excused if the harness lost it, too.
func TestStartWithoutAServerIsExcused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		harness *history.HarnessFailure
		broken  int64
	}{
		{"the server was there", nil, 1},
		{"the harness lost it, too", &history.HarnessFailure{Step: "a statement of the harness", Error: "EOF"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := func(context.Context, int) (ended, error) {
				server, err := server.ParseURL("postgres://127.0.0.1:1/none")
				if err != nil {
					return ended{}, err
				}
				m := &Machine{Name: "worker 1.1", Net: network.New(nil), DB: OpenPool(server, 1), Done: make(chan struct{}), Err: fmt.Errorf("worker: start: %w", driver.ErrBadConn), Cancel: func() {}}
				close(m.Done)
				m.Relay, err = network.RelayTo(func() (net.Conn, error) { return nil, driver.ErrBadConn }, false)
				return ended{m}, err
			}
			p := &Place[ended]{On: &server.Database{}, Begin: begin}
			if err := p.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.replaceDead(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.Node.cleanUp() // it was replaced by another
			p.retiring.Wait()
			e := &history.Evidence{History: history.New(time.Now()), Exits: p.exits, Harness: c.harness, Incomplete: c.harness != nil}
			for _, f := range oracle.Judge(e) {
				if f.Name == "life cycle" && f.Broken != c.broken {
					t.Errorf("broken %d times, want %d: %q", f.Broken, c.broken, f.Examples)
				}
			}
		})
	}
}
