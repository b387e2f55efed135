package runtime

import (
	"fmt"
	"sync"
	"time"
)

// Group is a set of goroutines. The first failure ends all of them.
type Group struct {
	Of     string // prefix of errors: the name of the package
	Fail   func() // ends the other goroutines
	Goexit error  // the error if a goroutine calls runtime.Goexit

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

// Wait returns the first error when all goroutines have ended. They end soon after their
// context, unless the driver ignores it. After limit, Wait returns without them.
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
