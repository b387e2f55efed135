// Package precedence gives a consumer to the build with the greatest scope.
package precedence

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/scope"
)

// Unit is the unit of one build, with what its precedence needs.
type Unit struct {
	Name        string
	Consumer    string // the name of the whole consumer
	Scope       scope.Scope
	Part        bool   // only workers with the same partition key count
	Key         string // of the partitions
	Checkpoints *progress.Checkpoints

	Dead     func(ctx context.Context, worker uuid.UUID) (bool, error) // reports whether a worker is dead
	Rescoped func(d progress.Rescoped)                                 // reports a change of the recorded scope
	Waits    func(why error, begins bool)                              // reports that the unit waits for another build
	Over     func(waited bool)                                         // reports that it waits for none
}

// Precedence is a unit's state of other builds.
type Precedence struct {
	unit      Unit
	waiting   bool      // another build has precedence, and that was reported
	alone     time.Time // since when all workers with precedence seem dead; zero: one seems alive
	confirmed bool      // the row has this scope, and no worker with precedence was alive after the scope was recorded
}

// New returns the state of a unit that has checked nothing yet.
func New(u Unit) Precedence { return Precedence{unit: u} }

// Runs reports whether this build runs the unit, by the scope that its row records. If it
// does, it waits for no other build.
func (p *Precedence) Runs(is progress.Recorded) bool {
	if !p.recorded(is) || !p.confirmed {
		return false
	}
	p.unit.Over(p.waiting)
	p.waiting = false
	return true
}

// recorded reports whether the row records this build's scope.
func (p *Precedence) recorded(is progress.Recorded) bool {
	return is.Scope != nil && is.Scope.Compare(p.unit.Scope) == 0
}

// Claim makes the row record this build's scope, and reports whether it has changed the row.
// While a worker whose build has precedence is alive, the unit waits: the leader assigns it to
// that worker. token is the incarnation of the loaded row.
func (p *Precedence) Claim(ctx context.Context, conn *sql.Conn, is progress.Recorded, token string) (changed bool, err error) {
	switch {
	case p.recorded(is):
		return p.confirm(ctx, conn, is, token)
	case is.Scope != nil && is.Scope.Compare(p.unit.Scope) > 0:
		return p.takeOver(ctx, conn, is, token)
	default:
		return p.record(ctx, conn, is, p.unit.Scope, token)
	}
}

// record records the scope to of the running code in the unit's row.
func (p *Precedence) record(ctx context.Context, conn *sql.Conn, is progress.Recorded, to scope.Scope, token string) (ok bool, err error) {
	d, ok, err := p.unit.Checkpoints.Rescope(ctx, conn, is, to, token, Reason(is.Scope, to))
	if ok {
		p.confirmed = false
		p.unit.Rescoped(d)
	}
	return ok, err
}

// takeOver takes the unit from a build with precedence, unless a worker of such a build is
// alive.
func (p *Precedence) takeOver(ctx context.Context, conn *sql.Conn, is progress.Recorded, token string) (taken bool, err error) {
	first, err := p.find(ctx, conn)
	if first != nil || err != nil {
		p.wait(first)
		return false, err
	}
	return p.record(ctx, conn, is, p.unit.Scope, token)
}

// confirm checks again, now that the row has this scope, whether a worker with precedence
// is alive. Such a worker may have registered before the row was changed. Its start has
// then read its own scope in the row, and relies on it. confirm gives the unit back to such
// a worker.
func (p *Precedence) confirm(ctx context.Context, conn *sql.Conn, is progress.Recorded, token string) (back bool, err error) {
	first, err := p.find(ctx, conn)
	switch {
	case err != nil:
		return false, err
	case first == nil:
		p.confirmed, p.alone = true, time.Time{}
		return false, nil
	case !first.lives:
		p.wait(first)
		return false, nil
	}
	return p.record(ctx, conn, is, first.Scope, token)
}

// ahead is another worker whose build has precedence.
type ahead struct {
	progress.Selecting
	lives bool // false: the worker seems dead, which needs a second check
}

// find returns the worker whose build has precedence. It returns nil if there is none, or if
// all of them are dead.
func (p *Precedence) find(ctx context.Context, conn *sql.Conn) (*ahead, error) {
	others, err := p.unit.Checkpoints.Selecting(ctx, conn, p.unit.Consumer)
	if err != nil {
		return nil, err
	}
	var all []ahead
	for _, o := range others {
		if !p.unit.yieldsTo(o) {
			continue
		}
		dead, err := p.unit.Dead(ctx, o.Worker)
		if err != nil {
			return nil, err
		}
		all = append(all, ahead{o, !dead})
	}
	return p.sighted(first(all), time.Now()), nil
}

// yieldsTo reports whether another worker's build has precedence.
func (u *Unit) yieldsTo(o progress.Selecting) bool {
	return o.Scope.Compare(u.Scope) > 0 && (!u.Part || o.Key == u.Key)
}

// first returns the living worker with the greatest scope. If all are dead, it returns one of
// them. It returns nil if there is none.
func first(all []ahead) (first *ahead) {
	for i, o := range all {
		if first == nil || o.lives && (!first.lives || o.Scope.Compare(first.Scope) > 0) {
			first = &all[i]
		}
	}
	return first
}

// sighted returns the worker that find has found, or nil if all such workers have seemed dead
// for long enough.
func (p *Precedence) sighted(first *ahead, now time.Time) *ahead {
	switch {
	case first == nil || first.lives:
		p.alone = time.Time{}
	case p.alone.IsZero():
		p.alone = now
	case now.Sub(p.alone) >= liveness.Confirmation:
		return nil
	}
	return first
}

// wait records that the unit waits for another worker's build. A nil worker changes nothing.
func (p *Precedence) wait(first *ahead) {
	if first != nil {
		p.unit.Waits(errOutranked{p.unit.Name, p.unit.Scope, first.Selecting}, !p.waiting)
		p.waiting = true
	}
}

// Reason returns the reason that the table of operations records for a change of the scope.
func Reason(from *scope.Scope, to scope.Scope) string {
	if from == nil {
		return ""
	}
	return fmt.Sprintf("the code selects %s, and selected %s", to.Words(), from.Words())
}

// errOutranked is the reason why a unit waits for another build.
type errOutranked struct {
	unit  string
	mine  scope.Scope
	other progress.Selecting
}

func (e errOutranked) Error() string {
	return fmt.Sprintf("worker: consumer %q waits: this build selects %s, and worker %s (%s) runs one that selects %s, which goes first: it gets the consumer; deploy one build, or stop that worker", e.unit, e.mine.Words(), e.other.Worker, e.other.Place, e.other.Scope.Words())
}
