package console

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// readLimit bounds the reads of a page, some thirty statements. An overloaded server answers late, and
// operators need its pages most.
const readLimit = 15 * time.Second

// reads are the reads of all pages. No page changes anything.
type reads struct {
	eventReads
	jobReads
}

// eventReads reads what the pages of the log and its consumers show.
type eventReads struct {
	db          *sql.DB
	names       store.Names
	payload     func(context.Context, store.PersistedEvent) (string, error) // as in Options
	consumers   *ops.Operator
	history     history
	comparisons []ops.Comparison
}

// jobReads reads what the pages of jobs show.
type jobReads struct{ jobs *ops.Jobs }
