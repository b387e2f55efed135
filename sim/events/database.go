package events

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
)

// ledgerTable is where the consumers write the events that they apply. It lets an event be applied
// twice: the oracle must find that.
const ledgerTable = `CREATE TABLE sim_ledger (
	seq BIGSERIAL PRIMARY KEY,
	consumer TEXT NOT NULL,
	worker TEXT NOT NULL,
	batch TEXT NOT NULL DEFAULT pg_current_xact_id()::text,
	late BOOLEAN NOT NULL,
	replay BOOLEAN NOT NULL,
	position BIGINT NOT NULL,
	aggregate_type TEXT NOT NULL,
	aggregate_id TEXT NOT NULL,
	version BIGINT NOT NULL,
	event_id UUID NOT NULL,
	epoch BIGINT NOT NULL
)`

// epochTables relate the epochs of a consumer to the audit: which rows were written in an epoch,
// and which open ranges were removed when an operator ended it. The library keeps neither. A row
// that replaces others, under the id of one of them, belongs to the epoch of that one.
//
// For a consumer in partitions, the resets of all units count. A merge leaves open ranges that not
// all parts had: sim_watched has what was opened.
const epochTables = `
CREATE FUNCTION sim_epoch(consumer TEXT) RETURNS BIGINT LANGUAGE sql STABLE AS $$
	SELECT count(*) FROM consumer_operations WHERE split_part(consumer_name, '#', 1) = split_part(consumer, '#', 1) AND operation = 'reset' $$;
CREATE TABLE sim_audit (skip BIGINT NOT NULL, epoch BIGINT NOT NULL);
CREATE INDEX ON sim_audit (skip);
CREATE TABLE sim_forgotten (consumer TEXT NOT NULL, epoch BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, by_transaction XID NOT NULL);
CREATE TABLE sim_watched (first BIGINT NOT NULL, last BIGINT NOT NULL, by_transaction XID NOT NULL);
CREATE FUNCTION sim_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'INSERT' THEN
		INSERT INTO sim_audit SELECT NEW.id, sim_epoch(NEW.consumer_name) WHERE NOT EXISTS (SELECT FROM sim_audit WHERE skip = NEW.id);
		INSERT INTO sim_watched SELECT NEW.gap_position, NEW.gap_end, pg_current_xact_id()::xid WHERE NEW.state = 'open';
	ELSIF OLD.state = 'open' THEN
		INSERT INTO sim_forgotten VALUES (OLD.consumer_name, sim_epoch(OLD.consumer_name),
			CASE TG_OP WHEN 'UPDATE' THEN NEW.gap_end + 1 ELSE OLD.gap_position END, OLD.gap_end, pg_current_xact_id()::xid);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_note AFTER INSERT OR UPDATE OR DELETE ON consumer_gap_skips FOR EACH ROW EXECUTE FUNCTION sim_note()`

// placedTable has where each consumer was placed first, and what was visible up to there: in a
// snapshot that is no older than the placement's.
const placedTable = `
CREATE TABLE sim_placed (consumer TEXT NOT NULL, position BIGINT NOT NULL, visible BIGINT NOT NULL);
CREATE FUNCTION sim_place() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_placed SELECT NEW.consumer_name, NEW.last_position, count(*) FROM events WHERE global_position <= NEW.last_position;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_place AFTER INSERT ON consumer_checkpoints FOR EACH ROW WHEN (strpos(NEW.consumer_name, '#') = 0) EXECUTE FUNCTION sim_place()`

// copyTable refuses, while a copy of the server is put back, what the copy would forget: a
// consumer's first checkpoint, and the repair of a batch that a handler had committed, which nobody
// makes again.
const copyTable = `
CREATE TABLE sim_copy (put_back BOOLEAN NOT NULL);
INSERT INTO sim_copy VALUES (false);
CREATE FUNCTION sim_remember() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE closed BOOLEAN; BEGIN
	SELECT put_back INTO closed FROM sim_copy FOR SHARE;
	IF closed THEN
		RAISE EXCEPTION 'a copy that does not have this is being put back' USING ERRCODE = 'admin_shutdown';
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_remember AFTER INSERT ON consumer_checkpoints FOR EACH ROW WHEN (strpos(NEW.consumer_name, '#') = 0) EXECUTE FUNCTION sim_remember();
CREATE TRIGGER sim_remember AFTER INSERT ON consumer_operations FOR EACH ROW WHEN (NEW.operation = 'repair') EXECUTE FUNCTION sim_remember()`

// Tables make the tables that the database itself writes in a run of events, and those of the
// consumers.
var Tables = []string{ledgerTable, epochTables, placedTable, copyTable, triggers, contestTrigger}

// Database is the database of a run with consumers of events, on its server.
type Database struct {
	*server.Instance
	follower *server.Follower
	copies   *copies
}

// NewDatabase returns the database of an instance that has Tables.
func NewDatabase(on *server.Instance) *Database {
	f := server.NewFollower(on)
	return &Database{Instance: on, follower: f, copies: &copies{on: on, follower: f}}
}

// Standings reads how far all consumers have come, in one snapshot: of one that is
// split, its parts.
func (d *Database) Standings(ctx context.Context) ([]history.Standing, error) {
	return server.Rows(ctx, d.Database, func(r *sql.Rows, s *history.Standing) error {
		var open string
		if err := r.Scan(&s.Consumer, &s.Checkpoint, &s.Revision, &s.Epoch, &open); err != nil {
			return err
		}
		return json.Unmarshal([]byte(open), &s.Open)
	}, `
SELECT c.consumer_name, c.last_position, c.revision, sim_epoch(c.consumer_name), coalesce((
	SELECT jsonb_agg(jsonb_build_object('first', s.gap_position, 'last', s.gap_end))
	FROM consumer_gap_skips AS s WHERE s.consumer_name = c.consumer_name AND s.state = 'open'), '[]')::text
FROM consumer_checkpoints AS c WHERE c.split_at IS NULL ORDER BY c.consumer_name COLLATE "C"`)
}

// Head is the highest visible position.
func (d *Database) Head(ctx context.Context) (head int64, err error) {
	err = d.Query(ctx, func() error {
		return d.DB.QueryRowContext(ctx, `SELECT coalesce(max(global_position), 0) FROM events`).Scan(&head)
	})
	return head, err
}

// handled counts what each consumer has applied so far.
func (d *Database) handled(ctx context.Context) (map[string]int64, error) {
	type count struct {
		consumer string
		n        int64
	}
	counts, err := server.Rows(ctx, d.Database, func(r *sql.Rows, c *count) error { return r.Scan(&c.consumer, &c.n) },
		`SELECT consumer, count(*) FROM sim_ledger GROUP BY consumer`)
	m := map[string]int64{}
	for _, c := range counts {
		m[c.consumer] = c.n
	}
	return m, err
}

// collect reads what the oracle needs of the tables.
func (d *Database) collect(ctx context.Context, e *history.Evidence) (err error) {
	if e.Log, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Event) error {
		return r.Scan(&v.Position, &v.Type, &v.ID, &v.Version, &v.EventID)
	}, `SELECT global_position, aggregate_type, aggregate_id, aggregate_version, event_id FROM events ORDER BY global_position`); err != nil {
		return fmt.Errorf("sim: read the log: %w", err)
	}
	if e.Ledger, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Entry) error {
		return r.Scan(&v.Consumer, &v.Worker, &v.Batch, &v.Late, &v.Replay, &v.Position, &v.Type, &v.ID, &v.Version, &v.EventID, &v.Epoch)
	}, `SELECT consumer, worker, batch, late, replay, position, aggregate_type, aggregate_id, version, event_id, epoch FROM sim_ledger ORDER BY seq`); err != nil {
		return fmt.Errorf("sim: read the ledger: %w", err)
	}
	if e.Skips, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Skip) error {
		return r.Scan(&v.Consumer, &v.First, &v.Last, &v.Missing, &v.State, &v.Epoch)
	}, `SELECT consumer_name, gap_position, gap_end, missing, state, epoch FROM consumer_gap_skips JOIN sim_audit ON skip = id ORDER BY id`); err != nil {
		return fmt.Errorf("sim: read the audit: %w", err)
	}
	if e.Placements, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Placement) error {
		return r.Scan(&v.Consumer, &v.Position, &v.Visible)
	}, `SELECT consumer, position, visible FROM sim_placed ORDER BY consumer`); err != nil {
		return fmt.Errorf("sim: read where consumers were placed: %w", err)
	}
	if e.Repairs, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Repair) error {
		return r.Scan(&v.Consumer, &v.From, &v.To, &v.Transaction)
	}, `SELECT consumer_name, (detail->>'from')::bigint, (detail->>'to')::bigint, detail->>'transaction' FROM consumer_operations WHERE operation = 'repair' ORDER BY id`); err != nil {
		return fmt.Errorf("sim: read the repairs: %w", err)
	}
	return errors.Join(d.collectOperations(ctx, e), d.collectUnauthorized(ctx, e), d.collectSelected(ctx, e), d.collectProofs(ctx, e))
}

// collectProofs proves the consumers by their receipts, as an operator would.
func (d *Database) collectProofs(ctx context.Context, e *history.Evidence) error {
	o, err := ops.New(d.DB)
	if err != nil {
		return err
	}
	for _, c := range e.Consumers {
		proof := history.Proof{Consumer: c.Name}
		err := d.Query(ctx, func() error {
			p, err := o.Prove(ctx, c.Name, nil)
			if errors.Is(err, ops.ErrNotFound) {
				return nil // it was not placed
			}
			if err != nil {
				return err
			}
			proof.Events, proof.Unproven = p.Events, nil
			for _, u := range p.Unproven {
				if u.Operation == 0 {
					proof.Unproven = append(proof.Unproven, fmt.Sprintf("positions %d to %d: %s", u.First, u.Last, u.Reason))
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("sim: prove %s: %w", c.Name, err)
		}
		e.Proofs = append(e.Proofs, proof)
	}
	return nil
}

// collectSelected reads what the code of consumers with several builds selected: up to each change
// of that, and up to now.
func (d *Database) collectSelected(ctx context.Context, e *history.Evidence) error {
	for _, c := range e.Consumers {
		if len(c.Sometimes) == 0 {
			continue
		}
		all, err := server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Selected) error {
			var types, open string
			v.Consumer = c.Name
			err := r.Scan(&v.To, &types, &open, &v.Contested)
			return errors.Join(err, json.Unmarshal([]byte(types), &v.Types), json.Unmarshal([]byte(open), &v.Open))
		}, `
SELECT "to", types, open, id IN (SELECT operation FROM sim_contested) FROM (
	SELECT id, (detail->>'position')::bigint AS "to", coalesce(detail->'from'->'types', '[]')::text AS types, (detail->'open')::text AS open
	FROM consumer_operations WHERE operation = 'scope' AND consumer_name = $1::text
	UNION ALL
	SELECT 9223372036854775807, last_position, coalesce(scope->'types', '[]')::text, '[]' FROM consumer_checkpoints WHERE consumer_name = $1::text
) AS s ORDER BY id`, c.Name)
		if err != nil {
			return fmt.Errorf("sim: read what the code of %s selected: %w", c.Name, err)
		}
		e.Selected = append(e.Selected, all...)
	}
	return nil
}

// collectOperations reads what operators did to the consumers' progress. What a reset makes a
// consumer forget is removed in the reset's transaction.
func (d *Database) collectOperations(ctx context.Context, e *history.Evidence) (err error) {
	if e.Operations, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Operation) error {
		return r.Scan(&v.Consumer, &v.Kind, &v.Epoch, &v.From, &v.To)
	}, `
SELECT consumer_name, operation, count(*) FILTER (WHERE operation = 'reset') OVER (PARTITION BY split_part(consumer_name, '#', 1) ORDER BY id) - (operation = 'reset')::int,
	(detail->>'from')::bigint, coalesce(detail->>'to', detail->>'position')::bigint
FROM consumer_operations WHERE operation IN ('reset', 'skip') ORDER BY id`); err != nil {
		return fmt.Errorf("sim: read the operations: %w", err)
	}
	paused, err := server.Column[int](ctx, d.Database, `SELECT count(*) FROM consumer_operations WHERE operation = 'pause' AND strpos(consumer_name, '#') > 0`)
	if err != nil {
		return fmt.Errorf("sim: count the pauses: %w", err)
	}
	e.PausedParts = paused[0]
	if e.Forgotten, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Skip) error {
		v.State, v.Missing = "open", 0
		return r.Scan(&v.Consumer, &v.Epoch, &v.First, &v.Last)
	}, `
SELECT f.consumer, f.epoch, f.first, f.last FROM sim_forgotten AS f
JOIN consumer_operations AS o ON o.xmin = f.by_transaction AND o.operation = 'reset' AND o.consumer_name = f.consumer ORDER BY f.consumer, f.epoch, f.first`); err != nil {
		return fmt.Errorf("sim: read what resets made consumers forget: %w", err)
	}
	if e.Rewatched, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Skip) error {
		v.State, v.Missing = "open", 1
		err := r.Scan(&v.Consumer, &v.First)
		v.Last = v.First
		return err
	}, `
SELECT part, position FROM consumer_operations AS o
JOIN sim_watched AS w ON w.by_transaction = o.xmin, jsonb_array_elements_text(o.detail->'from') AS part, generate_series(w.first, w.last) AS position
WHERE o.operation = 'merge' AND NOT EXISTS (
	SELECT FROM sim_forgotten AS f WHERE f.by_transaction = o.xmin AND f.consumer = part AND position BETWEEN f.first AND f.last)
ORDER BY o.id, part, position`); err != nil {
		return fmt.Errorf("sim: read what merges made consumers watch again: %w", err)
	}
	return nil
}

// collectUnauthorized reads what the triggers noted.
func (d *Database) collectUnauthorized(ctx context.Context, e *history.Evidence) (err error) {
	if e.Unauthorized, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.UnauthorizedBatch) error { return r.Scan(&v.Consumer, &v.Worker, &v.Batch) },
		`SELECT consumer, substr(worker, 5), batch FROM sim_unauthorized_batches ORDER BY seq`); err != nil {
		return fmt.Errorf("sim: read the unauthorized batches: %w", err)
	}
	if e.Assignments, err = server.Rows(ctx, d.Database, func(r *sql.Rows, v *history.Assignment) error { return r.Scan(&v.Consumer, &v.Worker, &v.Led) },
		`SELECT consumer, substr(worker, 5), led FROM sim_assigned ORDER BY seq`); err != nil {
		return fmt.Errorf("sim: read who assigned: %w", err)
	}
	return nil
}
