package events

import "github.com/pgfrontier/worker/internal/liveness"

// myself is the setting in which a worker's connections pass its id to the triggers. Other
// connections do not have it.
const myself = "sim.worker"

// triggers note what a worker did without the right to.
//
// A batch that moves a checkpoint is unauthorized if its consumer is not assigned to its worker.
// The condition of a trigger, and stable functions in it, read the snapshot of the trigger's
// statement. So this is what the guard could have seen: an assignment that was moved while the
// guard waited counts as the worker's. A batch that ends before its last event moves the checkpoint
// again, in the same transaction. The repair after a broken rule needs no assignment, nor does a
// start that records what its build selects. A worker that splits a consumer polled when it locked
// the row. Later assignments are of the new units.
//
// A worker that writes an assignment must lead: its session holds the leader's lock, or the lease
// is its own. Other sessions hold shared advisory locks only. A worker that splits or merges
// assigns the units that it makes, in the transaction that makes them.
const triggers = `
CREATE TABLE sim_unauthorized_batches (seq BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, worker TEXT NOT NULL, batch TEXT NOT NULL);
CREATE FUNCTION sim_owns(consumer TEXT) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
	SELECT EXISTS (SELECT FROM consumer_assignments WHERE consumer_name = consumer AND worker_id = current_setting('` + myself + `')::uuid) $$;
CREATE FUNCTION sim_unauthorized() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF EXISTS (SELECT FROM consumer_operations WHERE consumer_name = NEW.consumer_name AND operation = 'repair' AND xmin = pg_current_xact_id()::xid) THEN
		RETURN NULL;
	END IF;
	INSERT INTO sim_unauthorized_batches (consumer, worker, batch) VALUES (NEW.consumer_name, current_setting('application_name'), pg_current_xact_id()::text);
	RETURN NULL;
END $$;
CREATE TRIGGER sim_unauthorized AFTER UPDATE ON consumer_checkpoints FOR EACH ROW
	WHEN (current_setting('` + myself + `', true) <> '' AND OLD.xmin <> pg_current_xact_id()::xid AND OLD.split_at IS NULL AND NEW.split_at IS NULL
		AND OLD.scope IS NOT DISTINCT FROM NEW.scope AND NOT sim_owns(NEW.consumer_name)) EXECUTE FUNCTION sim_unauthorized();

CREATE TABLE sim_assigned (seq BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, worker TEXT NOT NULL, led BOOLEAN NOT NULL);
CREATE FUNCTION sim_assign() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF EXISTS (SELECT FROM consumer_checkpoints WHERE consumer_name = NEW.consumer_name AND xmin = pg_current_xact_id()::xid) THEN
		RETURN NULL;
	END IF;
	INSERT INTO sim_assigned (consumer, worker, led) VALUES (NEW.consumer_name, current_setting('application_name'),
		EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted)
		OR EXISTS (SELECT FROM worker_leader_election WHERE worker_id = current_setting('` + myself + `')::uuid));
	RETURN NULL;
END $$;
CREATE TRIGGER sim_assign AFTER INSERT OR UPDATE ON consumer_assignments FOR EACH ROW
	WHEN (current_setting('` + myself + `', true) <> '') EXECUTE FUNCTION sim_assign()`

// contestTrigger notes when a build that selects less takes over a consumer, while a worker lives
// whose build selects more. A worker lives if its heartbeat is fresh and, where workers have locks,
// its session holds its lock. This worker may have come between the search for it and the change.
// Then the consumer is given back before its next batch.
const contestTrigger = `
CREATE TABLE sim_contested (operation BIGINT NOT NULL);
CREATE FUNCTION sim_contest() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_contested SELECT NEW.id WHERE EXISTS (
		SELECT FROM worker_nodes AS n
		WHERE jsonb_array_length(n.partitions->NEW.consumer_name->'scope'->'types') > jsonb_array_length(NEW.detail->'to'->'types')
			AND NOT n.draining AND n.heartbeat_at BETWEEN clock_timestamp() - n.heartbeat_timeout AND clock_timestamp()
			AND (NOT EXISTS (SELECT FROM ` + liveness.SessionLocks + ` WHERE held.mode = 'ShareLock') OR EXISTS (
				SELECT FROM ` + liveness.SessionLocks + ` WHERE held.mode = 'ShareLock' AND held.key = ('x' || encode(substr(sha256(convert_to(
					format('["worker","public","worker_nodes","%s"]', n.worker_id), 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint)));
	RETURN NULL;
END $$;
CREATE TRIGGER sim_contest AFTER INSERT ON consumer_operations FOR EACH ROW WHEN (NEW.operation = 'scope') EXECUTE FUNCTION sim_contest()`
