package events

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// A writer's COMMIT may get no answer, or the server may go away in the middle of a transaction. A
// transaction whose COMMIT was not sent never happened. The server knows the outcome of all others.

// brokenOff records what became of a transaction that the server broke
// off.
func (w *writer) brokenOff(ctx context.Context, a *attempt, err error) error {
	if w.on.Forgive(err) != nil {
		return err
	}
	w.tally.Add(stage.TransactionsBrokenOff, 1)
	if a.sent {
		return w.learn(ctx, a)
	}
	w.abandon(a, err)
	return nil
}

// identify asks for the transaction's number, by which the server can be asked
// about it later.
func (w *writer) identify(ctx context.Context, a *attempt) error {
	return w.on.Mine(ctx, a.tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&a.xid))
}

// lose commits over a connection that breaks at that moment.
func (w *writer) lose(ctx context.Context, a *attempt) error {
	wire, err := network.ConnOf(a.conn)
	if err != nil {
		return err
	}
	wire.AtCommit(w.dice.IntN(2) == 0, w.net.Cut)
	a.sent = true
	if err := a.tx.Commit(); err == nil {
		return errors.New("a commit succeeded whose connection was to break")
	}
	return w.learn(ctx, a)
}

// learn asks what became of a transaction whose COMMIT got no answer.
func (w *writer) learn(ctx context.Context, a *attempt) error {
	a.lost = true
	happened, err := w.inquire(ctx, a)
	switch {
	case err != nil:
		return err
	case happened:
		w.keep(a)
	default:
		w.abandon(a, nil)
	}
	return nil
}

// inquire reports whether a transaction was committed. It waits for the transaction's end before it
// reads the event: the server may still commit after the connection is gone.
func (w *writer) inquire(ctx context.Context, a *attempt) (happened bool, err error) {
	err = w.on.Insist(ctx, func(ctx context.Context) (known bool, err error) {
		if known, err = w.on.Over(ctx, a.xid); err == nil && known {
			err = w.on.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM events WHERE event_id = $1::uuid)`, a.drawn[0].EventID.String()).Scan(&happened)
		}
		return known, err
	})
	return happened, err
}

var errNotPrepared = errors.New("the transaction was not prepared")

// seek reports whether a transaction was prepared.
func (w *writer) seek(ctx context.Context, gid, xid string) (there bool, err error) {
	err = w.on.Insist(ctx, func(ctx context.Context) (bool, error) {
		over, err := w.on.Over(ctx, xid) // a prepared one is not
		if err == nil {
			err = w.on.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1::text)`, gid).Scan(&there)
		}
		return over || there, err
	})
	return there, err
}

// decide ends a transaction that was prepared in a life of the server. A copy that was put back
// since may not have the transaction.
func (w *writer) decide(ctx context.Context, statement string, life int64) error {
	asked := false
	return w.on.Insist(ctx, func(ctx context.Context) (bool, error) {
		_, err := w.db.ExecContext(ctx, statement)
		var pg *pgconn.PgError
		if (asked || w.on.copies.restoredSince(life)) && errors.As(err, &pg) {
			switch pg.Code {
			case "42704": // there is none any more: it was the statement before
				return true, nil
			case "55000": // that one is still at it
				return false, nil
			}
		}
		asked = true
		return err == nil, err
	})
}
