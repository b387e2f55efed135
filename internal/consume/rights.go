package consume

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// checkRights reports with ErrPrivileges all that this worker's role needs and
// may not do. Some statements run for the first time after weeks, and would then
// fail for ever.
func (w *Worker) checkRights(ctx context.Context, t tables.Tables) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("worker: take a connection: %w", err)
	}
	defer conn.Close()
	rescales, err := w.rescales(ctx, conn, t)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	needs := rights.Worker(t, w.cfg.LeaderStrategy == LeaderStrategyLease, rescales)
	denied := w.deniesReads(ctx, conn)
	log, named := w.log.(store.SequenceNamer)
	if named {
		table, column := log.PositionColumn()
		needs = append(needs, rights.Log(table, column, denied != nil)...)
	}
	missing, err := rights.Missing(ctx, conn, needs)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if denied != nil && !named {
		missing = append(missing, fmt.Sprintf("a GRANT for the event store (%v)", denied))
	}
	if len(missing) > 0 {
		return fmt.Errorf("worker: %w (cmd/migrate-gen -grants prints all of them): %s", ErrPrivileges, strings.Join(missing, "; "))
	}
	if named {
		w.mentionHidden(ctx, conn, log)
	}
	return nil
}

// rescales reports whether this worker may have to split or to merge: one of its consumers
// says that it may be in partitions, or is split, or an operator has fixed a number.
func (w *Worker) rescales(ctx context.Context, conn *sql.Conn, t tables.Tables) (does bool, err error) {
	var names []string
	for _, u := range w.units {
		names, does = append(names, u.name), does || u.inTurn == nil
	}
	if does {
		return true, nil
	}
	err = conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+t.Checkpoints.SQL()+`
WHERE consumer_name = ANY (string_to_array($1::text, E'\n')) AND (split_at IS NOT NULL OR partitions > 1))`, strings.Join(names, "\n")).Scan(&does)
	if pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege || pgdriver.IsUndefined(err) {
		return false, nil // which others report, with the remedy
	}
	return does, err
}

// deniesReads returns the error if the role may not read what the event store
// reads: which columns those are, only the store knows.
func (w *Worker) deniesReads(ctx context.Context, conn *sql.Conn) error {
	if _, err := w.log.ReadEvents(ctx, conn, math.MaxInt64, 1); pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege {
		return err
	}
	return nil // whatever else is wrong, others report
}

// mentionHidden says whose transactions cannot be judged: nothing is lost, but
// what they may own stays in doubt for as long as they are open.
func (w *Worker) mentionHidden(ctx context.Context, conn *sql.Conn, log store.SequenceNamer) {
	table, _ := log.PositionColumn()
	roles, err := rights.HiddenAppenders(ctx, conn, table)
	if err == nil && roles != "" {
		w.observers.Notify(observe.RolesHidden{Roles: roles})
	}
}
