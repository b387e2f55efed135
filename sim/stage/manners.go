package stage

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	clocksSet        history.Fault = "times that the server's clock was set back or forward"
	transactionsLeft history.Fault = "transactions left open in a worker's pool"
	snapshotsHeld    history.Fault = "snapshots held"
	WorkersSlowed    history.Fault = "live workers far from the server for a while"
)

// Faults of runs of both kinds.
var (
	ClockRow    = fault.New("clock", "sets the server's clock back or forward by an hour, as far as the workers' rows tell", clocksSet)
	LeftRow     = fault.New("left", "leaves a transaction open on a connection of a worker's pool", transactionsLeft)
	SnapshotRow = fault.New("snapshot", "holds a snapshot, and the locks of a backup", snapshotsHeld)
)

// ShiftTimes moves the times of workers' rows and of the leader's lease by an hour. A row
// that is written between the two statements is not moved.
func (s *Place[P]) ShiftTimes(ctx context.Context, workers, lease string) error {
	by := fault.OneOf(s.Dice, "1 hour", "1 hour", "-1 hour")
	for _, statement := range []string{
		`UPDATE ` + workers + ` SET heartbeat_at = heartbeat_at + $1::interval WHERE isfinite(heartbeat_at)`,
		`UPDATE ` + lease + ` SET acquired_at = acquired_at + $1::interval, expires_at = expires_at + $1::interval`,
	} {
		if _, err := s.On.DB.ExecContext(ctx, statement, by); err != nil {
			return s.On.Forgive(fmt.Errorf("sim: set the clock: %w", s.On.Mine(ctx, err)))
		}
	}
	s.Happened(clocksSet, "by "+by)
	return nil
}

// LeaveTransaction sends a BEGIN through the worker's pool, as a caller does who forgets its
// end: the next user of that connection must not run in it.
func (s *Place[P]) LeaveTransaction(ctx context.Context) {
	bounded, cancel := s.On.Bounded(ctx, time.Second)
	defer cancel()
	if _, err := s.Node.Itself().DB.ExecContext(bounded, fault.OneOf(s.Dice, "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN READ ONLY")); err == nil {
		s.Happened(transactionsLeft, "")
	}
}

// HoldSnapshot does what a backup does: it reads all tables in one snapshot.
func (s *Place[P]) HoldSnapshot(ctx, intake context.Context) error {
	err := s.On.InSnapshot(ctx, func() {
		s.Happened(snapshotsHeld, "")
		s.Pause(intake, 300*time.Millisecond, 3*time.Second)
		s.Over(snapshotsHeld)
	})
	if err != nil {
		return s.On.Forgive(fmt.Errorf("sim: hold a snapshot: %w", s.On.Mine(ctx, err)))
	}
	return nil
}

// By is who operates on consumers and jobs, and why.
var By = ops.By{Operator: "sim", Reason: "to see what happens"}

// OddTimes counts rows that have one of Times.
const OddTimes history.Fault = "rows with an infinite or far time"

// Times are what others may have written into a column of ours.
var Times = []string{"infinity", "-infinity", "20000-01-01", "4713-01-01 BC"}

// Lingering is how long the connections of a machine that vanished stay.
const Lingering = 4 * time.Second

// TakeFar takes the server far away for a while.
func (s *Place[P]) TakeFar(intake context.Context) error {
	const nearest, furthest = 4 * time.Millisecond, 80 * time.Millisecond
	far := nearest + time.Duration(s.Dice.Int64N(int64(furthest-nearest)))
	net := s.Node.Itself().Net
	net.Remove(far)
	s.Happened(WorkersSlowed, fmt.Sprintf("answers take %v", far.Round(time.Millisecond)))
	s.Pause(intake, 500*time.Millisecond, 1500*time.Millisecond)
	net.Remove(0)
	s.Over(WorkersSlowed)
	return nil
}
