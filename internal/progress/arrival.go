package progress

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// Arrival says whether a consumer has handled a position, and why not.
type Arrival struct {
	Consumer   string // whose position it is: of a projection's versions, the one in use
	Handled    bool
	Unknown    bool  // the consumer has no checkpoint
	Renamed    bool  // only the row is there that a Rename has left
	Position   int64 // of the unit with the lowest position
	Paused     bool  // some unit is paused
	By         Pause // by whom, and why
	Open       bool  // a unit has passed the position while it was in doubt
	DeadLetter bool  // the event is among the dead letters
	Replayed   bool  // the event waits for the replay of its aggregate
	Split      bool  // the consumer has parts
}

// Why returns the reason why the consumer has not handled the position, as an error.
func (a Arrival) Why() error {
	switch {
	case a.Renamed:
		return fmt.Errorf("it was renamed by %s: wait for the new name", a.By.words())
	case a.Unknown:
		return errors.New("it has no checkpoint, no worker has run it yet")
	case a.Paused:
		return fmt.Errorf("it is paused at position %d by %s", a.Position, a.By.words())
	case a.Replayed:
		return errors.New("the event's aggregate is replayed")
	case a.Open:
		return errors.New("no event has appeared there yet, its transaction may be open")
	}
	return fmt.Errorf("it is at position %d", a.Position)
}

// arrivals are the statements that tell how far a consumer has come.
type arrivals struct{ arrived, known string }

// Arrived reads whether a consumer, or the version of a projection that is in use, has handled a
// position, and the incarnation of the server that answers.
func (s arrivals) Arrived(ctx context.Context, q store.Querier, name string, position int64) (a Arrival, token string, err error) {
	var other string
	err = q.QueryRowContext(ctx, s.arrived, name, position).Scan(&a.Consumer, &other, &a.Position, &a.Paused, &a.Open, &a.DeadLetter, &a.Replayed, &a.Split, &token, &a.By.By, &a.By.Reason, &a.Renamed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Arrival{Consumer: name, Unknown: true}, "", nil
	case err != nil:
		return a, "", fmt.Errorf("worker: read the position of consumer %s: %w", errtext.Value(name), err)
	case a.Renamed:
		return Arrival{Consumer: name, Unknown: true, Renamed: true, By: a.By}, "", nil
	case other != a.Consumer:
		return a, "", fmt.Errorf("worker: two versions of projection %s are no shadows, %s and %s, so it is unknown which one readers use: Retire the newer one, and let it begin as a shadow", errtext.Value(name), errtext.Value(a.Consumer), errtext.Value(other))
	}
	a.Handled = a.Position >= position && !a.Open && !a.DeadLetter && !a.Replayed
	return a, token, nil
}

// Known reports whether a worker has registered code for a consumer, or for a version of a projection.
func (s arrivals) Known(ctx context.Context, q store.Querier, unit string) (known bool, err error) {
	if err = q.QueryRowContext(ctx, s.known, unit).Scan(&known); err != nil {
		return false, fmt.Errorf("worker: find the workers with code for consumer %s: %w", errtext.Value(unit), err)
	}
	return known, nil
}
