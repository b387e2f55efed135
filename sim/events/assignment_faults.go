package events

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/store"
)

const (
	workersUnregistered history.Fault = "registrations deleted"
	consumersUnassigned history.Fault = "assignments deleted"
	leadersDeposed      history.Fault = "leaders stalled while an assignment waited"
	workersDeafened     history.Fault = "workers whose consumers were moved away unheard"
	oldWorkers          history.Fault = "workers from before there were partitions"
)

// assignmentFaults change who is registered, who leads, and what is assigned.
var assignmentFaults = []faultRow{
	{Row: fault.New("unregister", "deletes a worker's registration", workersUnregistered), worker: at((*Slot).unregister, afterGuard)},
	{Row: fault.New("unassign", "deletes the assignment of a consumer", consumersUnassigned).Reaching(oracle.MovedConsumers),
		worker: at((*Slot).unassign, afterGuard)},
	{Row: fault.New("depose", "stalls the leader while what it assigns waits in the server", leadersDeposed),
		worker: at((*Slot).depose, afterGuard, afterGuard)},
	{Row: fault.New("deafen", "moves all consumers of a worker away, and keeps it from hearing of that", workersDeafened),
		worker: at((*Slot).deafen, afterGuard)},
	{Row: fault.New("old-build", "registers a worker from before there were partitions, which hangs and is gone soon",
		oldWorkers).Reaching(oracle.Rescaled),
		worker: at((*Slot).oldBuild, afterGuard)},
}

// unregister deletes the worker's registration under its hands.
func (s *Slot) unregister(ctx, intake context.Context, at point) (err error) {
	injected, inBatch := s.inject(intake, at, func() {
		_, err = s.on.DB.ExecContext(ctx, `DELETE FROM worker_nodes WHERE worker_id = $1::uuid`, s.Node.id())
		err = s.on.Mine(ctx, err)
	})
	if injected && err == nil {
		s.Happened(workersUnregistered, whereabouts(at, inBatch))
	}
	return err
}

// unassign deletes the assignment of a consumer without a notification. The leader must detect
// that.
func (s *Slot) unassign(ctx, _ context.Context, _ point) error {
	consumer := fault.OneOf(s.Dice, s.scenario.Scope...).Name
	if _, err := s.on.DB.ExecContext(ctx, `DELETE FROM consumer_assignments WHERE consumer_name = $1::text`, consumer); err != nil {
		return s.on.Forgive(fmt.Errorf("sim: delete an assignment: %w", s.on.Mine(ctx, err)))
	}
	s.Tally.Add(consumersUnassigned, 1)
	s.History.Add("", consumer, history.FaultInjected, history.Injection{Fault: consumersUnassigned})
	return nil
}

// deafen gives the worker's consumers to another, and keeps the worker from reading that for a
// while. A read of the assignments is also a heartbeat, so it waits for the worker's row.
func (s *Slot) deafen(ctx, intake context.Context, _ point) error {
	tx, err := s.on.DB.BeginTx(ctx, nil)
	if err == nil {
		err = s.moveUnheard(ctx, intake, tx)
	}
	if err != nil {
		return s.on.Forgive(fmt.Errorf("sim: hold a worker's row: %w", s.on.Mine(ctx, err)))
	}
	return nil
}

func (s *Slot) moveUnheard(ctx, intake context.Context, tx *sql.Tx) error {
	defer func() { _ = tx.Rollback() }()
	var holder int // the backend
	err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid() FROM worker_nodes WHERE worker_id = $1::uuid FOR UPDATE`, s.Node.id()).Scan(&holder)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // somebody has unregistered it
	}
	if err != nil {
		return err
	}
	waits, err := s.waitsFor(ctx, intake, holder)
	if err != nil || !waits {
		return err
	}
	moved, err := s.on.DB.ExecContext(ctx, `
UPDATE consumer_assignments AS a SET worker_id = n.worker_id, updated_at = clock_timestamp()
FROM (SELECT worker_id FROM worker_nodes WHERE worker_id <> $1::uuid ORDER BY heartbeat_at DESC LIMIT 1) AS n
WHERE a.worker_id = $1::uuid`, s.Node.id())
	if err != nil {
		return err
	}
	if n, err := moved.RowsAffected(); err != nil || n == 0 {
		return err
	}
	s.Happened(workersDeafened, "")
	s.Pause(intake, 100*time.Millisecond, 800*time.Millisecond)
	return nil
}

// oldBuild registers a worker without partition support, as an older build does. Meanwhile each
// consumer must be one unit, and may be assigned to this worker, which does nothing. The worker
// leaves in order, or just ends.
func (s *Slot) oldBuild(ctx, intake context.Context, _ point) error {
	t, err := tables.Parse(store.Names{})
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	db := stdlib.OpenDB(*s.on.Config("old worker"))
	defer db.Close()
	k, id := s.scenario.Knobs, uuid.New()
	var names []string
	for _, c := range s.scenario.Scope {
		names = append(names, c.Name)
	}
	session, err := liveness.New(liveness.Config{
		DB: pgdriver.Pool{DB: db}, ID: id, Nodes: t.Nodes, Stopped: t.Stopped, Token: t.Token, Column: "consumers", Names: names,
		HeartbeatInterval: k.HeartbeatInterval, HeartbeatTimeout: k.HeartbeatTimeout, Lock: true,
	}).Open(ctx)
	if err != nil {
		return s.on.Forgive(fmt.Errorf("sim: an old worker: %w", err))
	}
	defer session.Close()
	for range 2 + s.Dice.IntN(6) {
		if err := session.Register(ctx); err != nil {
			return s.on.Forgive(fmt.Errorf("sim: an old worker: %w", err))
		}
		if !backoff.Sleep(intake, k.HeartbeatInterval) {
			break
		}
	}
	s.Tally.Add(oldWorkers, 1)
	s.History.Add("", "", history.FaultInjected, history.Injection{Fault: oldWorkers})
	if fault.Chance(s.Dice, 0.5) {
		_, err = s.on.DB.ExecContext(ctx, `DELETE FROM worker_nodes WHERE worker_id = $1::uuid`, id)
	}
	return s.on.Forgive(s.on.Mine(ctx, err))
}

// depose makes the leader hang while its assignment waits for a row in the server, until another
// worker could lead. Then the row is freed, and the assignment of the former leader can still be
// written. It must not harm other workers.
func (s *Slot) depose(ctx, intake context.Context, at point) error {
	if !s.Node.worker.Status().Leader {
		return nil
	}
	if err := s.unassign(ctx, intake, at); err != nil {
		return err
	}
	tx, err := s.on.DB.BeginTx(ctx, nil)
	if err == nil {
		err = s.hangWhileWaiting(ctx, intake, tx)
	}
	if err != nil {
		return s.on.Forgive(fmt.Errorf("sim: hold an assignment: %w", s.on.Mine(ctx, err)))
	}
	return nil
}

// hangWhileWaiting makes this slot's worker hang once it waits for tx to free the assignment. After
// a while it frees the assignment.
func (s *Slot) hangWhileWaiting(ctx, intake context.Context, tx *sql.Tx) error {
	defer func() { _ = tx.Rollback() }() // a no-op if it was done before
	var holder int                       // the backend
	err := tx.QueryRowContext(ctx, `
WITH held AS (
	INSERT INTO consumer_assignments (consumer_name, worker_id)
	SELECT c.consumer_name, $1::uuid FROM consumer_checkpoints AS c WHERE NOT EXISTS (SELECT FROM consumer_assignments AS a WHERE a.consumer_name = c.consumer_name)
	ON CONFLICT (consumer_name) DO NOTHING
)
SELECT pg_backend_pid()`, s.Node.id()).Scan(&holder)
	if err != nil {
		return err
	}
	waits, err := s.waitsFor(ctx, intake, holder)
	if err != nil || !waits {
		return err
	}
	s.Node.Net.Stall()
	s.Happened(leadersDeposed, "")
	takeover := s.scenario.Knobs.HeartbeatTimeout + 2*s.scenario.Knobs.HeartbeatInterval
	s.Pause(intake, takeover, takeover+500*time.Millisecond)
	err = tx.Rollback()
	s.Pause(intake, 0, 500*time.Millisecond)
	s.Node.Net.Release()
	s.Over(leadersDeposed)
	return err
}

// waitsFor reports whether this slot's worker comes to wait for a backend.
func (s *Slot) waitsFor(ctx, intake context.Context, holder int) (waits bool, err error) {
	for end := time.Now().Add(s.on.Bounds.Of(time.Second)); !waits && err == nil && time.Now().Before(end); {
		if !backoff.Sleep(intake, 5*time.Millisecond) {
			return false, nil
		}
		err = s.on.DB.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1::text AND datname = current_database() AND $2::int = ANY (pg_blocking_pids(pid)))`,
			"sim "+s.Node.Name, holder).Scan(&waits)
	}
	return waits, err
}
