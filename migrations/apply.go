package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Apply creates or upgrades the tables of the worker and of the event store, in one
// transaction. Several processes may call Apply at once, and whenever they start. If the tables are
// up to date, Apply takes no lock that could wait for a running transaction. It never changes
// tables of a newer version. It returns [ErrNewerVersion] if this program may not run beside them.
//
// Apply upgrades tables of eventsalsa/worker and pupsourcing in place, while their processes
// run. Apply refuses a table of the same name that it cannot upgrade. The error names all
// missing columns.
//
// An upgrade waits until ctx ends for transactions that use the tables, such as that of
// pg_dump. A try lasts a second; the workers wait behind the try. The error, and warnings to
// [slog.Default], name the transactions that hold the locks. While the database cannot be reached,
// Apply tries again until ctx ends, and warns of failures. A wrong address counts as unreachable.
// So give ctx a deadline. If a large events table lacks an index, appends wait while Apply builds
// the index: see [StoreSQL].
func Apply(ctx context.Context, db *sql.DB, c *Config) error { return errtext.Of(apply(ctx, db, c)) }

func apply(ctx context.Context, db *sql.DB, c *Config) error {
	s, err := newSchema(c)
	if err != nil {
		return err
	}
	return s.ensure(ctx, db)
}

// ensure creates or upgrades the tables. It waits while the database cannot be reached.
func (s schema) ensure(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return errors.New("migrations: db is nil")
	}
	return pgdriver.Reach(ctx, "migrations", 0, func(err error) {
		slog.WarnContext(ctx, "migrations wait for the database", "err", errtext.Of(err))
	}, func(ctx context.Context) error { return s.ensureOn(ctx, db) })
}

// ensureOn is ensure on a database that can be reached.
func (s schema) ensureOn(ctx context.Context, db *sql.DB) error {
	var inTheWay error // of the latest try
	for tries, waits := 1, 0; ; tries++ {
		done, err := s.applied(ctx, db)
		if err != nil && ctx.Err() != nil && inTheWay != nil {
			return fmt.Errorf("%w: %w", inTheWay, err)
		}
		if done || err != nil {
			return err
		}
		// Transactions that use the tables may take their locks in another order.
		err = s.once(ctx, db)
		if errors.Is(err, errLockWait) && pgdriver.IsTimeLimit(err) && backoff.Sleep(ctx, 50*time.Millisecond) {
			tries--
			continue // a statement_timeout of the role ended the wait for the lock
		}
		if pgdriver.SQLState(err) == pgdriver.LockNotAvailable {
			tries, waits = tries-1, waits+1
			inTheWay = s.inTheWay(ctx, db, err)
			if waits&(waits-1) == 0 { // at the 1st, 2nd, 4th, 8th wait and so on
				slog.WarnContext(ctx, "migrations wait for transactions", "err", inTheWay)
			}
			if backoff.Sleep(ctx, backoff.Session(waits)) {
				continue
			}
		}
		if ctx.Err() != nil && inTheWay != nil {
			return fmt.Errorf("%w: %w", inTheWay, ctx.Err())
		}
		if tries == deadlocks || pgdriver.SQLState(err) != pgdriver.DeadlockDetected {
			return err
		}
	}
}

// deadlocks is how often Apply tries again after PostgreSQL has chosen it as a deadlock's victim.
const deadlocks = 5

// once applies all statements in one transaction.
func (s schema) once(ctx context.Context, db *sql.DB) error {
	// The transaction is READ COMMITTED, whatever the default is. A read after a wait for the
	// lock must see the changes of the lock's last holder.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("migrations: cannot begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after Commit
	if err := s.apply(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("migrations: cannot commit: %w", err)
	}
	return nil
}

var lock = texts.Statement("lock", nil)

// inTheWay returns end, an error of a wait for a lock. It adds the transactions that held locks
// of the tables during the whole wait.
func (s schema) inTheWay(ctx context.Context, db *sql.DB, end error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	who, err := filter(ctx, db, holders, sqlNames(slices.Concat(s.own, s.beside)))
	if err != nil || len(who) == 0 {
		return end
	}
	return fmt.Errorf("%w: in the way is %s: let its application end the transaction, or SELECT pg_terminate_backend(pid)", end, strings.Join(who, ", "))
}

var holders = texts.Statement("holders", nil)

// errLockWait reports that the wait for the other appliers failed.
var errLockWait = errors.New("migrations: cannot wait for other processes that apply them")

func (s schema) apply(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, lock); err != nil {
		return fmt.Errorf("%w: %w", errLockWait, err)
	}
	if done, err := s.applied(ctx, tx); done || err != nil {
		return err
	}
	if err := s.checkPlaces(ctx, tx); err != nil {
		return err
	}
	if err := s.checkShapes(ctx, tx); err != nil {
		return err
	}
	statements, err := s.createSchemas(ctx, tx)
	if err != nil {
		return err
	}
	// The statements are executed one by one: the extended protocol takes a single statement at
	// a time.
	for _, statement := range slices.Concat(statements, statementsOf(s.beside, false), s.ownStatements()) {
		if _, err := tx.ExecContext(ctx, statement); pgdriver.SQLState(err) == pgdriver.LockNotAvailable {
			return fmt.Errorf("migrations: cannot lock the tables: %w", err)
		} else if index, _ := pgdriver.Violation(err); pgdriver.SQLState(err) == pgdriver.UniqueViolation && !strings.HasPrefix(index, "pg_") {
			return duplicates(err)
		} else if err != nil {
			return fmt.Errorf("migrations: %w, in %s", err, statement)
		}
	}
	if done, err := s.applied(ctx, tx); done || err != nil {
		return err
	}
	faults, _, err := s.inspect(ctx, tx, s.beside...)
	if err == nil && len(faults) > 0 {
		return cannotUpgrade(faults)
	}
	return errors.Join(err, errors.New("migrations: a view, a table or the like has the name of one of the indexes to create: choose other table names"))
}

// duplicates explains the error of a unique index that cannot be created. The rows were inserted
// while there was none.
func duplicates(err error) error {
	index, detail := pgdriver.Violation(err)
	return fmt.Errorf("migrations: cannot create unique index %q again, since rows were inserted while it was missing: %s keep one row of each key, DELETE the others or cancel their jobs, then apply again: %w", index, cmp.Or(detail, "the server does not say which:"), err)
}

func cannotUpgrade(faults []string) error {
	return fmt.Errorf("migrations: cannot upgrade tables of another program: %s: choose other table names, or change the tables to fit", strings.Join(faults, "; "))
}

// applied reports whether all tables are up to date.
func (s schema) applied(ctx context.Context, q store.Querier) (bool, error) {
	faults, v, err := s.inspect(ctx, q, s.beside...)
	switch {
	case err != nil:
		return false, err
	case v.oldest > s.version:
		return false, s.newer(v)
	case v.applied > s.version && len(faults) > 0:
		return false, fmt.Errorf("%w: the database has version %d, this program %d, and it lacks: %s: apply the migrations of a newer program with these table names", ErrNewerVersion, v.applied, s.version, strings.Join(faults, "; "))
	case v.applied > s.version:
		return true, nil
	case len(faults) > 0 || v.applied < s.version:
		return false, nil
	}
	missing, err := filter(ctx, q, missingIndexes, shapes(slices.Concat(s.own, s.beside), false))
	return err == nil && len(missing) == 0, err
}

// checkShapes refuses a relation that has a table's name but is no table. It also refuses a
// table without a column that every version had.
func (s schema) checkShapes(ctx context.Context, q store.Querier) error {
	tables := slices.Concat(s.own, s.beside)
	faults, err := filter(ctx, q, taken, sqlNames(tables))
	if err != nil {
		return err
	}
	for i := range faults {
		faults[i] += " is no table"
	}
	lacks, err := filter(ctx, q, missingParts, shapes(tables, false))
	if err == nil && len(faults)+len(lacks) > 0 {
		err = cannotUpgrade(append(faults, lacks...))
	}
	return err
}

// checkPlaces refuses to create tables that would hide older ones. Tables without a schema are
// found anywhere in the search path but created in its first schema. Then the older tables and
// their checkpoints would no longer be found.
func (s schema) checkPlaces(ctx context.Context, q store.Querier) error {
	hidden, err := filter(ctx, q, misplaced, sqlNames(slices.Concat(s.own, s.beside)))
	if err == nil && len(hidden) > 0 {
		err = fmt.Errorf("migrations: %s found through the search path, but not in its first schema, where new tables would go: give the table names their schema, as in \"infra.worker_nodes\"", strings.Join(hidden, ", "))
	}
	return err
}

// createSchemas returns statements for the schemas that do not exist. CREATE SCHEMA IF NOT
// EXISTS needs the right to create a schema even if the schema exists.
func (s schema) createSchemas(ctx context.Context, q store.Querier) ([]string, error) {
	missing, err := filter(ctx, q, noSchema, schemasOf(slices.Concat(s.own, s.beside)))
	for i, name := range missing {
		missing[i] = createSchema(name)
	}
	return missing, err
}
