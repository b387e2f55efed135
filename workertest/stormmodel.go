package workertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// readModel returns the rows of each query as JSON, sorted.
func readModel(ctx context.Context, q store.Querier, queries []string) ([][]string, error) {
	model := make([][]string, len(queries))
	for i, query := range queries {
		rows, err := pgdriver.QueryAll(ctx, q, func(r *sql.Rows) (row string, err error) { return row, r.Scan(&row) },
			"SELECT row_to_json(q)::text FROM (\n"+strings.TrimRight(query, "; \t\r\n")+"\n) AS q")
		if err != nil {
			return nil, fmt.Errorf("query Model[%d]: %w", i, err)
		}
		slices.Sort(rows)
		model[i] = rows
	}
	return model, nil
}

// shown is the maximum number of rows, or of faults, that an error names.
const shown = 3

// difference describes the rows in which a read model differs from the expected one. It is empty if
// there are none.
func difference(want, got [][]string) string {
	var all []string
	for i := range want {
		missing, unexpected := without(want[i], got[i]), without(got[i], want[i])
		switch {
		case len(missing) > 0 && len(unexpected) > 0:
			all = append(all, fmt.Sprintf("Model[%d]: missing %s, unexpected %s", i, named(missing), named(unexpected)))
		case len(missing) > 0:
			all = append(all, fmt.Sprintf("Model[%d]: missing %s", i, named(missing)))
		case len(unexpected) > 0:
			all = append(all, fmt.Sprintf("Model[%d]: unexpected %s", i, named(unexpected)))
		}
	}
	return strings.Join(all, "; ")
}

// named names the first rows.
func named(rows []string) (text string) {
	for i, row := range rows[:min(shown, len(rows))] {
		if i > 0 {
			text += ", "
		}
		text += errtext.Unquoted(row)
	}
	if more := len(rows) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// without returns the rows of a that b does not have as often. Both are sorted.
func without(a, b []string) (rest []string) {
	for _, row := range a {
		for len(b) > 0 && b[0] < row {
			b = b[1:]
		}
		if len(b) > 0 && b[0] == row {
			b = b[1:]
			continue
		}
		rest = append(rest, row)
	}
	return rest
}

// The hints name the probable causes of a difference.
const (
	hintPool   = "Handle uses the pool: execute every statement through tx"
	hintRandom = "the rows depend on more than the events, such as time.Now, now(), random numbers, the order of a map, a sequence, or a variable of the package: derive them from the event, or leave the column out of Model"
	hintMemory = "the consumer keeps state in memory, which a rollback does not undo and a restart loses, or depends on the size of batches: read the state through tx"
	hintOrder  = "the rows depend on the order of events of different aggregates, and late commits change this order: accept any order, name the cause in CausationID if an event always follows another, or use worker.WithGapPolicy(worker.GapWait)"
)

// ledger has the calls of a handler that returned nil, in order.
type ledger struct {
	mu    sync.Mutex
	calls []handled
}

// handled is an event that was handled in a transaction.
type handled struct {
	tx    string
	event store.PersistedEvent
}

func (l *ledger) add(tx string, events []store.PersistedEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.calls = append(l.calls, handled{tx, e})
	}
}

// judge returns an error unless each event was handled once in a committed transaction, and the
// events of an aggregate in order of version. No batch may be running.
func (l *ledger) judge(ctx context.Context, q store.Querier, events []store.PersistedEvent) error {
	committed, err := l.committed(ctx, q)
	if err != nil {
		return err
	}
	times, last := map[int64]int{}, map[aggregate]int64{}
	var faults []error
	for _, c := range l.calls {
		if !committed[c.tx] {
			continue
		}
		times[c.event.GlobalPosition]++
		a := aggregate{c.event.AggregateType, c.event.AggregateID}
		if v := c.event.AggregateVersion; v <= last[a] {
			faults = append(faults, fmt.Errorf("version %d of aggregate %s of type %s was handled after version %d", v, errtext.Value(a.id), errtext.Value(a.kind), last[a]))
		}
		last[a] = c.event.AggregateVersion
	}
	for _, e := range events {
		if n := times[e.GlobalPosition]; n != 1 {
			faults = append(faults, fmt.Errorf("the event at position %d (type %s) was handled in %d committed transactions, want 1", e.GlobalPosition, errtext.Value(e.EventType), n))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: if Handle does not end tx and the key of Partitions is pure, report a defect of the library", errtext.Join(faults[:min(shown, len(faults))]...))
}

// committed returns the transactions of the calls that committed.
func (l *ledger) committed(ctx context.Context, q store.Querier) (map[string]bool, error) {
	var ids []string
	for _, c := range l.calls {
		if len(ids) == 0 || ids[len(ids)-1] != c.tx {
			ids = append(ids, c.tx)
		}
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	all, err := pgdriver.QueryAll(ctx, q, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) },
		`SELECT id FROM jsonb_array_elements_text($1::jsonb) AS id WHERE txid_status(id::bigint) = 'committed'`, string(list))
	if err != nil {
		return nil, fmt.Errorf("read the status of transactions: %w", err)
	}
	set := map[string]bool{}
	for _, id := range all {
		set[id] = true
	}
	return set, nil
}

type aggregate struct{ kind, id string }
