package runtime

import (
	"fmt"
	"sync"
	"time"
)

// Group is goroutines that end together: the first that fails ends the others.
type Group struct {
	Of     string // the package, with which an error begins
	Fail   func() // ends the others
	Goexit error  // what runtime.Goexit in one of them is taken for

	wg   sync.WaitGroup
	once sync.Once
	err  error
}

// Run runs f in a goroutine.
func (g *Group) Run(f func() error) {
	g.wg.Go(func() {
		err := g.Goexit
		defer func() {
			if err != nil {
				g.once.Do(func() { g.err = err })
				g.Fail()
			}
		}()
		err = f()
	})
}

// Wait returns the first error when all have ended. All end soon after their
// context, unless the driver ignores it: after limit they are left behind.
func (g *Group) Wait(limit time.Duration) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.wg.Wait()
	}()
	select {
	case <-ended:
		return g.err
	case <-time.After(limit):
		return fmt.Errorf("%s: a statement of the worker still runs %v after its context ended: the driver ignores that; pgx does not", g.Of, limit)
	}
}
