package console

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// Options configure a Console. The zero Options are usable.
type Options struct {
	// Access returns what the sender of a request may see and change. The console calls it once per
	// request, except for styles and scripts. Default nil: every sender has Read.
	Access func(*http.Request) Grant
	// Payload formats the payload of an event as text. The console calls it for senders who may see
	// payloads. Default nil: text is shown as it is, any other payload in hexadecimal.
	Payload func(context.Context, store.PersistedEvent) (string, error)
	// Environment names the deployment, such as "production". Every page shows it after the name of
	// the database. Default empty: pages show the name of the database alone.
	Environment string
	// Comparisons are queries of what two consumers have made, such as two versions of a projection.
	// The page of either consumer leads to the comparison, for senders who may see payloads. The
	// queries have 10 s, and the rights of db. Two comparisons of the same consumers are an error: make
	// them one by UNION ALL. Default nil: none.
	Comparisons []ops.Comparison
	// Names are the names of the tables of the workers, the event store and jobs.
	Names store.Names
}

const (
	nameLimit    = time.Second      // the bound of the read of the database's name; without an answer, pages show no name
	changeLimit  = 15 * time.Second // the bound of a change, which also waits for a batch in flight
	switchLimit  = 5 * time.Second  // the bound of a switch, which holds the shadow for most of it
	compareLimit = 10 * time.Second // the bound of a comparison, which waits until both consumers have handled the same events
	maxBody      = 64 << 10         // bytes of a form
	maxBuild     = 2 << 20          // bytes of a form with a build
	perPage      = 50
)

// Console is a handler. Any number of goroutines may use it.
type Console struct {
	o        Options
	reads    reads
	broken   error                  // why no page can be shown
	database atomic.Pointer[string] // its name, once it is known
	guarded  http.Handler
	live     sampler
}

// where names the database and the environment. It is empty for senders with Level None.
func (c *Console) where(ctx context.Context, g Grant) string {
	if g.Level <= None {
		return ""
	}
	name := c.database.Load()
	if name == nil && c.broken == nil {
		ctx, cancel := context.WithTimeout(ctx, nameLimit)
		defer cancel()
		name = new(string)
		if c.reads.db.QueryRowContext(ctx, `SELECT current_database()`).Scan(name) != nil {
			name = nil // another page asks again
		}
		c.database.Store(name)
	}
	var known []string
	if name != nil {
		known = append(known, *name)
	}
	if c.o.Environment != "" {
		known = append(known, c.o.Environment)
	}
	return strings.Join(known, ", ")
}
