package events

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// contractOn is the fault of handlers that end their transactions.
const contractOn = "contract"

// breach is a way in which a handler breaks the rule that it must not end its
// transaction.
type breach struct {
	name    string
	commits bool
	do      func(ctx context.Context, tx *sql.Tx) error // what it does
	then    func() error                                // how it returns
	later   bool                                        // it fails at a later event, if there is one
}

var (
	errBroken = errors.New("the simulation lets this handler fail after it has ended its transaction")
	fails     = func() error { return errBroken }
	succeeds  = func() error { return nil }
)

func says(statement string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}

func txCommit(_ context.Context, tx *sql.Tx) error { return tx.Commit() }

var breaches = []breach{
	{"tx.Commit() and an error", true, txCommit, fails, false},
	{"tx.Commit()", true, txCommit, succeeds, false},
	{"tx.Commit() and a panic", true, txCommit, func() error { panic(errBroken) }, false},
	{"COMMIT and an error", true, says("COMMIT"), fails, false},
	{"COMMIT", true, says("COMMIT"), succeeds, false},
	{"COMMIT AND CHAIN", true, says("COMMIT AND CHAIN"), succeeds, false},
	{"COMMIT AND CHAIN, and an error at the next event", true, says("COMMIT AND CHAIN"), succeeds, true},
	{"ROLLBACK AND CHAIN", false, says("ROLLBACK AND CHAIN"), succeeds, false},
}

// breachLedger is what was broken in a run.
type breachLedger struct {
	mu  sync.Mutex
	all []history.Breach
}

// add records a transaction, or what else is known of one.
func (b *breachLedger) add(x history.Breach) {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(y history.Breach) bool { return x.Batch != "" && y.Batch == x.Batch && y.Consumer == x.Consumer }
	if i := slices.IndexFunc(b.all, same); i >= 0 {
		b.all[i].Ended, b.all[i].Committed = x.Ended, x.Committed
		return
	}
	b.all = append(b.all, x)
}

// judge adds what workers that broke the rule have left to an operator.
func (b *breachLedger) judge(exits []history.Exit) []history.Breach {
	for _, x := range exits {
		if u, ok := unknown(x); ok {
			b.add(u)
		}
	}
	return b.all
}

// holds reports whether a handler of that consumer, or of a unit of it, has broken
// the rule.
func (b *breachLedger) holds(consumer string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.all, func(x history.Breach) bool {
		name, _, _ := strings.Cut(x.Consumer, "#")
		return name == consumer
	})
}

// breach breaks the rule if wanted returns true, once in the life of a worker. It reports whether
// it did.
func (b *LedgerConsumer) breach(ctx context.Context, d Delivered, wanted func() bool) (done bool, err error) {
	tx := d.Tx
	if b.failNext == tx {
		b.failNext = nil
		return true, errBroken
	}
	if !wanted() || !b.node.fate.CompareAndSwap(0, toBreak) {
		return false, nil
	}
	how := fault.OneOf(b.Dice, breaches...)
	x, err := b.note(ctx, tx)
	if err != nil {
		b.node.fate.Store(0) // it has not begun
		b.cameToNothing()
		return true, err
	}
	b.injected(history.Breaches, fmt.Sprintf("%s, at position %d", how.name, d.GlobalPosition))
	if err := how.do(ctx, tx); err != nil {
		b.cameToNothing()
		return true, err
	}
	_, lost := b.note(ctx, tx) // the transaction that follows, if one does
	switch {
	case !how.commits && lost != nil:
		b.cameToNothing() // this may as well be a lost connection
	case !b.node.apart.Load():
		x.Ended, x.Committed = true, how.commits
		b.tell(x)
		if !how.commits {
			b.node.undone.Store(&x)
		}
	}
	if how.later {
		b.failNext = tx
	}
	return true, how.then()
}

// excuse withdraws that a worker must end because a handler has rolled its batch back, if the
// batch's connection was lost before the worker could read. The worker cannot distinguish the two.
func (n *node) excuse(done observe.Batch, i Injector) {
	x := n.undone.Load()
	if x == nil || done.Consumer != x.Consumer || !n.undone.CompareAndSwap(x, nil) {
		return
	}
	if pgdriver.IsConnectionLoss(done.Err) || errors.Is(done.Err, pgdriver.ErrSilent) {
		excused := history.Breach{Consumer: x.Consumer, Worker: x.Worker, Batch: x.Batch}
		n.History.Add(n.Name, x.Consumer, history.RuleBroken, excused)
		i.Breached(excused)
	}
}

func (b *LedgerConsumer) cameToNothing() {
	b.record(history.FaultOver, history.Injection{Fault: history.Breaches})
}

// note records the transaction in flight as part of a batch in which the rule was broken.
func (b *LedgerConsumer) note(ctx context.Context, tx *sql.Tx) (history.Breach, error) {
	x := history.Breach{Consumer: b.unit, Worker: b.node.Name}
	err := tx.QueryRowContext(ctx, `SELECT pg_current_xact_id()::text`).Scan(&x.Batch)
	if err == nil {
		b.tell(x)
	}
	return x, err
}

func (b *LedgerConsumer) tell(x history.Breach) {
	b.record(history.RuleBroken, x)
	b.Breached(x)
}

// leftToOperators finds that a worker cannot know what was handled: another worker had moved the
// consumer, or the server had crashed, before the worker could read.
var leftToOperators = regexp.MustCompile(`consumer "([^"]+)" failed.* compare what the handler wrote with the events from position (\d+) to (\d+), and reset the consumer`)

// unknown is the breach that a worker left to an operator, as its error must say.
func unknown(end history.Exit) (x history.Breach, ok bool) {
	found := leftToOperators.FindStringSubmatch(strings.ReplaceAll(end.Error, "\n", " "))
	if found == nil || end.Asked != history.ExitBroke {
		return x, false
	}
	first, _ := strconv.ParseInt(found[2], 10, 64) // digits
	last, _ := strconv.ParseInt(found[3], 10, 64)
	return history.Breach{Consumer: found[1], Worker: end.Worker, Unknown: &history.Span{First: first, Last: last}}, true
}
