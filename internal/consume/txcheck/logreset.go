package txcheck

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
)

// LogResetError stops a consumer whose checkpoint may belong to the log before a reset.
// Otherwise the new events up to the checkpoint would count as handled.
type LogResetError struct {
	unit           string
	position, last int64
}

func (e LogResetError) Error() string {
	const reset = "reset the consumer to where it is to go on from (0 for all events) and resume it (package ops)"
	if e.position > e.last {
		return fmt.Sprintf("worker: consumer %q is at position %d, but the log's sequence has issued %d at most: positions up to there come again and would not be handled; %s", e.unit, e.position, e.last, reset)
	}
	return fmt.Sprintf("worker: consumer %[1]q is at position %[2]d, but the events table and its sequence have other files than before: if maintenance rewrote them (ALTER TABLE, VACUUM FULL) and the events up to %[2]d are those that the consumer has handled, resume it without a reset, which would apply them again (pgfrontier resume); if the log was emptied since, and its sequence restarted, events up to there would not be handled: %[3]s", e.unit, e.position, reset)
}

// Log knows to which log the checkpoint of a unit belongs. The zero value knows nothing.
type Log struct {
	incarnation string // in which the checkpoint last belonged to the log
	// handled is the last event that this worker has handled and committed for the unit, or
	// the event at the loaded checkpoint.
	handled struct {
		position int64 // 0: none
		is       reader.Fingerprint
	}
}

// LogReader reads the log for [Log.Check]. token is the incarnation that must answer.
type LogReader interface {
	// EventAt reads the event at a position.
	EventAt(ctx context.Context, token string, position int64) (is reader.Fingerprint, found bool, err error)
	// IsLast reports whether the event at a position is unchanged and is the unit's last
	// event up to upTo.
	IsLast(ctx context.Context, token string, position int64, is reader.Fingerprint, upTo int64) (bool, error)
}

// Check returns a [LogResetError] if the loaded checkpoint of a unit may belong to the log
// before a reset.
func (l *Log) Check(ctx context.Context, unit string, p *progress.State, r LogReader) error {
	if p.Paused != nil || p.Token == "" {
		return nil // checked at a later load
	}
	stop := p.Position > p.Last
	if !stop && p.Position > 0 && incarnation.LogRestarted(l.incarnation, p.Token) {
		same, err := l.same(ctx, p, r)
		if err != nil {
			return err
		}
		stop = !same
	}
	if stop {
		return LogResetError{unit, p.Position, p.Last}
	}
	if err := l.recordCheckpoint(ctx, p, r); err != nil {
		return err
	}
	l.incarnation = p.Token
	return nil
}

// recordCheckpoint records the event at the loaded checkpoint. It identifies the log until
// the unit has handled another event in this worker. Without such an event, maintenance that
// rewrites the log would pause the consumer.
func (l *Log) recordCheckpoint(ctx context.Context, p *progress.State, r LogReader) error {
	if l.handled.position >= p.Position {
		return nil
	}
	is, found, err := r.EventAt(ctx, p.Token, p.Position)
	if found {
		l.Handled(p.Position, is)
	}
	return err
}

// same reports whether the log is known to contain the events that the unit has handled up
// to its checkpoint. A rewrite gives the table and its sequence other files, and so does
// TRUNCATE ... RESTART IDENTITY. Only a rewrite keeps each event at its position.
func (l *Log) same(ctx context.Context, p *progress.State, r LogReader) (bool, error) {
	if l.handled.position == 0 {
		return false, nil
	}
	return r.IsLast(ctx, p.Token, l.handled.position, l.handled.is, p.Position)
}

// Handled records the last event that the unit has handled and committed.
func (l *Log) Handled(position int64, is reader.Fingerprint) {
	l.handled.position, l.handled.is = position, is
}

// Paused records that the unit was paused after a reset. The operator who resumes it has
// read the reason. The last handled event may belong to the log before the reset.
func (l *Log) Paused(token string) {
	l.incarnation = token
	l.handled.position = 0
}
