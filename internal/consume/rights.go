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

const grantsHint = " (cmd/migrate-gen -grants prints all of them)"

// checkRights returns ErrPrivileges with every privilege that the worker's role lacks. Some
// statements run for the first time after weeks. Without the check they would fail only
// then.
func checkRights(ctx context.Context, e *env, events store.Log, lease bool, t tables.Tables) error {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("worker: take a connection: %w", err)
	}
	defer conn.Close()
	rescales, err := rescales(ctx, conn, e.units, t)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	needs := rights.Worker(t, lease, rescales)
	denied := checkReads(ctx, conn, events)
	log, named := events.(store.SequenceNamer)
	if named {
		table, column := log.PositionColumn()
		needs = append(needs, rights.Log(table, column, denied != nil)...)
	}
	var others []string
	if denied != nil && !named {
		others = append(others, fmt.Sprintf("a GRANT for the event store (%v)", denied))
	}
	if err := rights.Check(ctx, conn, grantsHint, needs, others...); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if named {
		// No event is lost, but positions of hidden transactions stay in doubt for as long as
		// the transactions are open.
		table, _ := log.PositionColumn()
		if roles, err := rights.HiddenAppenders(ctx, conn, table); err == nil && roles != "" {
			e.observers.Notify(observe.RolesHidden{Roles: roles})
		}
	}
	return nil
}

// rescales reports whether this worker may have to split or merge units. It may if a
// consumer is partitioned or already split, or if an operator has fixed a number of
// partitions.
func rescales(ctx context.Context, conn *sql.Conn, units []*unit, t tables.Tables) (does bool, err error) {
	var names []string
	for _, u := range units {
		names, does = append(names, u.name), does || u.exclusive == nil
	}
	if does {
		return true, nil
	}
	err = conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+t.Checkpoints.SQL()+`
WHERE consumer_name = ANY (string_to_array($1::text, E'\n')) AND (split_at IS NOT NULL OR partitions > 1))`, strings.Join(names, "\n")).Scan(&does)
	if pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege || pgdriver.IsUndefined(err) {
		return false, nil // other checks report it, with the remedy
	}
	return does, err
}

// checkReads returns an error if the role lacks a privilege for the event store's reads.
// Only the store knows which columns it reads.
func checkReads(ctx context.Context, conn *sql.Conn, log store.Log) error {
	if _, err := log.ReadEvents(ctx, conn, math.MaxInt64, 1); pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege {
		return err
	}
	return nil // other checks report any other error
}
