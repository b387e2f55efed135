package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// boundStore reads the table that Bind has found.
type boundStore struct {
	*Store
	proving *Store
}

// At returns a store whose reads fail with store.ErrIncarnation in any other incarnation of the
// server.
func (b boundStore) At(incarnation string) store.Log {
	s := *b.proving
	s.incarnation = incarnation
	return &s
}

// Bind finds the events table as q's session sees it now. The returned log reads the table
// under its qualified name. So later changes of a session's search path have no effect.
// incarnation is an SQL expression: see [store.Binder].
//
// Bind refuses a temporary table and a table that lacks a column of an event. Bind also refuses
// a nondeterministic collation of the aggregate columns. It would make types equal that a
// consumer distinguishes.
func (s *Store) Bind(ctx context.Context, q store.Querier, incarnation string) (store.BoundLog, error) {
	if err := s.canRead(q); err != nil {
		return nil, err
	}
	events, err := s.find(ctx, q)
	if err != nil {
		return nil, err
	}
	found := *s
	found.events, found.sql = events, newStatements(events, s.heads, "", "")
	proving := found
	proving.proves, proving.sql = true, newStatements(events, s.heads, "", incarnation)
	return boundStore{&found, &proving}, nil
}

// Binds reports whether log is this store. It is false for a type that embeds the store.
func (s *Store) Binds(log store.Log) bool { return log == store.Log(s) }

// find returns the qualified name of the events table.
func (s *Store) find(ctx context.Context, q store.Querier) (events ident.Table, err error) {
	var persistence, columns, alter string
	err = q.QueryRowContext(ctx, texts["find"], s.events.SQL()).Scan(&events.Schema, &events.Name, &persistence, &columns, &alter)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return events, fmt.Errorf("storepostgres: there is no table %s: create it with migrations.Apply, or correct WithNames", s.events)
	case err != nil:
		return events, fmt.Errorf("storepostgres: find table %s: %w", s.events, err)
	case persistence == "t":
		return events, fmt.Errorf("storepostgres: %s is no table of the log but a temporary one of this session, %s: name the schema in WithNames", s.events, events)
	case alter != "":
		return events, fmt.Errorf("storepostgres: a nondeterministic collation of table %s makes aggregates equal to the database that are different to consumers: ALTER TABLE %s %s", events, events.SQL(), alter)
	}
	there := strings.Fields(columns)
	var missing []string
	for _, c := range columnNames() {
		if !slices.Contains(there, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return events, fmt.Errorf("storepostgres: %s leads to table %s, which lacks the columns %s of an event: correct WithNames or the search path", s.events, events, strings.Join(missing, ", "))
	}
	return events, nil
}

// columnNames returns the names of eventColumns.
func columnNames() []string {
	var names []string
	for column := range strings.SplitSeq(eventColumns, ",") {
		names = append(names, strings.TrimPrefix(strings.TrimSpace(column), "e."))
	}
	return names
}

// args adds the incarnation to the arguments of a read that proves it.
func (s *Store) args(args ...any) []any {
	if s.proves {
		return append(args, s.incarnation)
	}
	return args
}

// explain returns store.ErrIncarnation for the error of a failed proof, and any other err unchanged.
func (s *Store) explain(err error) error {
	if s.proves && pgdriver.SQLState(err) == pgdriver.DivisionByZero {
		return store.ErrIncarnation
	}
	return err
}
