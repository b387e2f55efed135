package sim

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// The epoch is exact: a reset waits for the consumer's row, which the batch
// holds, and the batch for that of a reset.
const ledgerInsert = `INSERT INTO sim_ledger (consumer, worker, late, position, aggregate_type, aggregate_id, version, event_id, epoch)
VALUES ($1::text, $2::text, $3::boolean, $4::bigint, $5::text, $6::text, $7::bigint, $8::uuid,
	(SELECT count(*) FROM consumer_operations WHERE consumer_name = $1::text AND operation = 'reset'))`

// bookkeeper is a consumer that writes each event into the ledger, with the
// transaction that it is given, and lets faults strike while it works.
type bookkeeper struct {
	scope    history.Scope
	node     *node
	dice     *rand.Rand
	mischief mischief
	moves    float64 // how much more often than usual

	tx       *sql.Tx   // of the batch in hand
	next     time.Time // flap
	failNext *sql.Tx   // the batch whose next event fails
}

func (b *bookkeeper) Name() string             { return b.scope.Name }
func (b *bookkeeper) AggregateTypes() []string { return b.scope.Types }

func (b *bookkeeper) StartAt() consumer.Start {
	if b.scope.AtHead {
		return consumer.AtHead()
	}
	return consumer.AtBeginning()
}

// Handle is called by one goroutine at a time, the consumer's on this worker.
func (b *bookkeeper) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	first := tx != b.tx
	b.tx = tx
	if first {
		b.node.spring(ctx, afterGuard)
	}
	if !first {
		if err := b.mischief.refuse(b.scope.Name, b.node.name, e.GlobalPosition); err != nil {
			return err
		}
	}
	delivery, _ := consumer.Info(ctx)
	if _, err := tx.ExecContext(ctx, ledgerInsert, b.scope.Name, b.node.name, delivery.Late, e.GlobalPosition,
		e.AggregateType, e.AggregateID, e.AggregateVersion, e.EventID.String()); err != nil {
		return err
	}
	b.node.spring(ctx, afterEffect)
	b.dawdle(ctx)
	if did, err := b.breach(ctx, tx, e); did {
		return err
	}
	if first {
		return b.mischief.fail(b.dice, b.scope.Name, b.node.name)
	}
	return nil
}

// dawdle now and then takes its consumer away from this worker in the middle
// of a batch, and takes long enough over it for the next owner to arrive.
func (b *bookkeeper) dawdle(ctx context.Context) {
	now := time.Now()
	if b.moves == 0 || now.Before(b.next) {
		return
	}
	if !b.next.IsZero() && b.mischief.flap(ctx, b.dice, b.scope.Name, b.node.name) {
		backoff.Sleep(ctx, between(b.dice, 50*time.Millisecond, 500*time.Millisecond))
	}
	b.next = now.Add(time.Duration((0.5 + b.dice.Float64()) * float64(b.node.knobs.Flap) / b.moves))
}
