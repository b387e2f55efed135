package events

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// The epoch is exact: a batch and a reset each hold the consumer's row, so each waits for the
// other.
const ledgerInsert = `INSERT INTO sim_ledger (consumer, worker, late, replay, position, aggregate_type, aggregate_id, version, event_id, epoch)
VALUES ($1::text, $2::text, $3::boolean, $4::boolean, $5::bigint, $6::text, $7::text, $8::bigint, $9::uuid,
	sim_epoch($1::text))`

// Injector is what handlers do beside their ledgers.
type Injector interface {
	// Inject injects a fault at an event that was written into the ledger, or
	// none; in a run of jobs it enqueues some, too. If done, the handler returns err.
	// It may panic.
	Inject(ctx context.Context, b *LedgerConsumer, d Delivered) (done bool, err error)
	Count(history.Fault)
	Breached(history.Breach)
}

// partitioned is a consumer whose parts have a LedgerConsumer each. The number of parts that it
// demands is drawn for each worker.
type partitioned struct {
	whole *LedgerConsumer
	count int
	part  func(name string) *LedgerConsumer

	mu  sync.Mutex
	all map[string]*LedgerConsumer
}

func (p *partitioned) Name() string                    { return p.whole.Name() }
func (p *partitioned) Partitions() consumer.Partitions { return consumer.Partitions{Count: p.count} }

// Handle is called by one goroutine at a time for each part.
func (p *partitioned) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	delivery, _ := consumer.Info(ctx)
	p.mu.Lock()
	b := p.all[delivery.Partition]
	if b == nil {
		b = p.part(delivery.Partition)
		p.all[delivery.Partition] = b
	}
	p.mu.Unlock()
	return b.Handle(ctx, tx, e)
}

// LedgerConsumer is a consumer that writes each event into the ledger, in the transaction that it
// is given. Faults are injected while it works.
type LedgerConsumer struct {
	Injector
	scope history.Scope
	unit  string // assigned to the worker: the consumer, or a part of it
	node  *node
	Dice  *rand.Rand

	tx       *sql.Tx       // of the batch in flight
	nextMove time.Time     // of its consumer to another worker
	failNext *sql.Tx       // the batch whose next event fails
	slow     time.Duration // of the handler, for each event of the batch in flight
}

// Pool is the worker's pool.
func (b *LedgerConsumer) Pool() *sql.DB { return b.node.DB }

func (b *LedgerConsumer) Name() string             { return b.scope.Name }
func (b *LedgerConsumer) AggregateTypes() []string { return b.scope.Types }

func (b *LedgerConsumer) StartAt() consumer.Start {
	if b.scope.AtHead {
		return consumer.AtHead()
	}
	return consumer.AtBeginning()
}

// Handle is called by one goroutine at a time: the consumer's in this worker.
func (b *LedgerConsumer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	d := Delivered{e, tx, tx != b.tx}
	b.tx = tx
	if d.first {
		b.node.reach(ctx, afterGuard)
	}
	if err := b.write(ctx, tx, e); err != nil {
		return err
	}
	b.node.reach(ctx, afterEffect)
	if done, err := b.Inject(ctx, b, d); done {
		return err
	}
	return nil
}

// write writes an event into the ledger. With a driver that the library knows, every other event is
// written through pgx.
func (b *LedgerConsumer) write(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	delivery, _ := consumer.Info(ctx)
	args := []any{b.scope.Name, b.node.Name, delivery.Late, delivery.Replay, e.GlobalPosition,
		e.AggregateType, e.AggregateID, e.AggregateVersion, e.EventID.String()}
	if b.node.Plain || e.GlobalPosition%2 == 0 {
		_, err := tx.ExecContext(ctx, ledgerInsert, args...)
		return err
	}
	return pgxtx.In(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, ledgerInsert, args...)
		return err
	})
}

// injected counts and records a fault of a handler.
func (b *LedgerConsumer) injected(f history.Fault, where string) {
	b.Count(f)
	b.record(history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// record adds what happened to the consumer on its worker to the history.
func (b *LedgerConsumer) record(kind history.Kind, about any) {
	b.node.History.Add(b.node.Name, b.scope.Name, kind, about)
}

// Delivered is an event that was given to a handler.
type Delivered struct {
	store.PersistedEvent
	Tx    *sql.Tx
	first bool // of its batch
}
