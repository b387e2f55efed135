package migrations

import (
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
)

// Apply creates or upgrades the tables of the worker and of the event store,
// in one transaction. Any number of processes may call it, at every start.
// When there is nothing to do, it takes no lock that could wait for a running
// transaction. It never changes tables of a newer version, and returns
// [ErrNewerVersion] if this program may not run beside them.
//
// Tables of eventsalsa/worker and pupsourcing are upgraded in place, while
// their processes run. Apply refuses a table of the same name that it cannot
// upgrade, and names all that the table lacks.
//
// An upgrade waits for transactions that use the tables, such as that of pg_dump, until
// ctx ends. The workers wait behind each try, which lasts a second. The error, and
// warnings to [slog.Default] while it waits, name the transactions in the way. While the database
// cannot be reached, also at a wrong address, Apply tries again until ctx ends, and warns of each
// failure: give ctx a deadline. On a large events
// table it holds up appends while it builds a missing index: see [StoreSQL].
func Apply(ctx context.Context, db *sql.DB, c *Config) error { return errtext.Of(apply(ctx, db, c)) }

func apply(ctx context.Context, db *sql.DB, c *Config) error {
	s, err := newSchema(c)
	if err != nil {
		return err
	}
	return s.ensure(ctx, db)
}

// ensure applies what is missing.
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
	var inTheWay error // as of the latest try
	for tries, waits := 1, 0; ; tries++ {
		done, err := s.applied(ctx, db)
		if err != nil && ctx.Err() != nil && inTheWay != nil {
			return fmt.Errorf("%w: %w", inTheWay, err)
		}
		if done || err != nil {
			return err
		}
		// Transactions that use the tables take their locks in other orders.
		err = s.once(ctx, db)
		if errors.Is(err, errTurn) && pgdriver.IsTimeLimit(err) && backoff.Sleep(ctx, 50*time.Millisecond) {
			tries--
			continue // the role has a statement_timeout, and its turn may come yet
		}
		if pgdriver.SQLState(err) == pgdriver.LockNotAvailable {
			tries, waits = tries-1, waits+1
			inTheWay = s.inTheWay(ctx, db, err)
			if waits&(waits-1) == 0 { // more and more seldom
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

// deadlocks is how often Apply begins again after PostgreSQL has sacrificed it.
const deadlocks = 5

// once applies everything in one transaction.
func (s schema) once(ctx context.Context, db *sql.DB) error {
	// READ COMMITTED whatever the default is: a look after waiting for the lock
	// must see what its last holder did.
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

// lock makes appliers take turns: CREATE ... IF NOT EXISTS fails when two of
// them race. Being the transaction's, it works behind a pooler, too.
//
// The lock_timeout of the role does not end this wait. The statements that follow wait for
// a second at most, or for the lock_timeout of the role if that is shorter: heartbeats and
// batches queue behind a statement that waits to change their table.
const lock = `
WITH before AS MATERIALIZED (
	SELECT role, set_config('lock_timeout', '0', true) AS lock FROM (SELECT current_setting('lock_timeout') AS role OFFSET 0) AS before
), turn AS MATERIALIZED (
	SELECT role, pg_advisory_xact_lock(hashtextextended('github.com/pgfrontier/worker/migrations', 0)) FROM before WHERE lock IS NOT NULL
)
SELECT set_config('lock_timeout', CASE WHEN role::interval > '0' AND role::interval < '1s' THEN role ELSE '1s' END, true) FROM turn`

// inTheWay returns the end of a wait for a lock, with the transactions that held locks of
// the tables all the while.
func (s schema) inTheWay(ctx context.Context, db *sql.DB, end error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	who, err := filter(ctx, db, holders, sqlNames(slices.Concat(s.own, s.beside)))
	if err != nil || len(who) == 0 {
		return end
	}
	return fmt.Errorf("%w: in the way is %s: let its application end the transaction, or SELECT pg_terminate_backend(pid)", end, strings.Join(who, ", "))
}

// holders takes a JSON array of tables.
const holders = `
SELECT DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction, see pg_prepared_xacts') || coalesce(' (application_name ' || quote_ident(a.application_name) || ', ' || a.state || ')', '')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND l.relation IN (SELECT to_regclass(x.name)::oid FROM json_array_elements_text($1::text::json) AS x(name))
AND l.pid IS DISTINCT FROM pg_backend_pid() AND coalesce(a.xact_start < clock_timestamp() - interval '1 second', true) ORDER BY 1`

// errTurn is what an applier fails with whose turn did not come.
var errTurn = errors.New("migrations: cannot wait for other processes that apply them")

func (s schema) apply(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, lock); err != nil {
		return fmt.Errorf("%w: %w", errTurn, err)
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
	// One by one: the extended protocol takes a single statement at a time.
	for _, statement := range slices.Concat(statements, statementsOf(s.beside), s.ownStatements()) {
		if _, err := tx.ExecContext(ctx, statement); pgdriver.SQLState(err) == pgdriver.LockNotAvailable {
			return fmt.Errorf("migrations: cannot lock the tables: %w", err)
		} else if err != nil {
			return fmt.Errorf("migrations: %w, in %s", err, statement)
		}
	}
	if done, err := s.applied(ctx, tx); done || err != nil {
		return err
	}
	faults, _, err := s.look(ctx, tx, s.beside...)
	if err == nil && len(faults) > 0 {
		return cannotUpgrade(faults)
	}
	return errors.Join(err, errors.New("migrations: a view, a table or the like has the name of one of the indexes to create: choose other table names"))
}

func cannotUpgrade(faults []string) error {
	return fmt.Errorf("migrations: cannot upgrade what another program has made: %s: choose other table names, or change it to fit", strings.Join(faults, "; "))
}

// applied reports whether everything is there already.
func (s schema) applied(ctx context.Context, q Querier) (bool, error) {
	faults, v, err := s.look(ctx, q, s.beside...)
	switch {
	case err != nil:
		return false, err
	case v.oldest > s.version:
		return false, s.newer(v)
	case v.applied > s.version && len(faults) > 0:
		return false, fmt.Errorf("%w: the database has version %d, this program %d, and it lacks something: %s: apply the migrations of a newer program with these table names", ErrNewerVersion, v.applied, s.version, strings.Join(faults, "; "))
	case v.applied > s.version:
		return true, nil
	case len(faults) > 0 || v.applied < s.version:
		return false, nil
	}
	missing, err := missingIndexes(ctx, q, slices.Concat(s.own, s.beside))
	return err == nil && len(missing) == 0, err
}

// checkShapes refuses what has a table's name and is none, and tables that lack
// what every version had.
func (s schema) checkShapes(ctx context.Context, q Querier) error {
	tables := slices.Concat(s.own, s.beside)
	faults, err := filter(ctx, q, taken, sqlNames(tables))
	if err != nil {
		return err
	}
	for i := range faults {
		faults[i] += " is no table"
	}
	lacks, err := filter(ctx, q, lacking, shapes(tables, false))
	if err == nil && len(faults)+len(lacks) > 0 {
		err = cannotUpgrade(append(faults, lacks...))
	}
	return err
}

// checkPlaces refuses to put new tables in front of old ones: without a schema
// tables are found anywhere in the search path but created in its first schema,
// and the old ones' checkpoints would be out of sight.
func (s schema) checkPlaces(ctx context.Context, q Querier) error {
	hidden, err := filter(ctx, q, elsewhere, sqlNames(slices.Concat(s.own, s.beside)))
	if err == nil && len(hidden) > 0 {
		err = fmt.Errorf("migrations: %s found through the search path, but not in its first schema, where new tables would go: give the table names their schema, as in \"infra.worker_nodes\"", strings.Join(hidden, ", "))
	}
	return err
}

// createSchemas returns statements for the schemas that do not exist. Even
// where one does, CREATE SCHEMA IF NOT EXISTS demands the right to create it.
func (s schema) createSchemas(ctx context.Context, q Querier) ([]string, error) {
	missing, err := filter(ctx, q, noSchema, schemasOf(slices.Concat(s.own, s.beside)))
	for i, name := range missing {
		missing[i] = createSchema(name)
	}
	return missing, err
}
