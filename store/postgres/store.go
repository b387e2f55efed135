// Package postgres keeps an event log in PostgreSQL, version 13 or later.
//
// Import it as storepostgres. It works through database/sql with pgx, in each
// of its exec modes, and with lib/pq. Package migrations creates its tables.
package postgres

import (
	"fmt"
	"sync/atomic"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

var (
	_ store.Log           = (*Store)(nil)
	_ store.ScopedReader  = (*Store)(nil)
	_ store.RangeReader   = (*Store)(nil)
	_ store.SequenceNamer = (*Store)(nil)
	_ store.Binder        = (*Store)(nil)
)

// positionColumn is the column whose default draws from the log's sequence.
const positionColumn = "global_position"

// StoreConfig names the tables of a Store. Build it with NewStoreConfig or DefaultStoreConfig.
type StoreConfig struct {
	// Names has the names of the tables. A Store uses those of Events and AggregateHeads.
	Names store.Names
	// NotifyChannel is the channel that appends notify when they commit. Default empty: no
	// notification.
	NotifyChannel string
	// Logger logs appends and conflicts, at level debug. Default nil: no log.
	Logger store.Logger
}

// StoreOption changes one field of a StoreConfig.
type StoreOption func(*StoreConfig)

// WithNames sets StoreConfig.Names.
func WithNames(n store.Names) StoreOption { return func(c *StoreConfig) { c.Names = n } }

// WithEventsTable sets the field Events of the names.
func WithEventsTable(name string) StoreOption { return func(c *StoreConfig) { c.Names.Events = name } }

// WithAggregateHeadsTable sets the field AggregateHeads of the names.
func WithAggregateHeadsTable(name string) StoreOption {
	return func(c *StoreConfig) { c.Names.AggregateHeads = name }
}

// WithNotifyChannel sets StoreConfig.NotifyChannel. The notification wakes the workers that
// listen on the channel.
//
// PostgreSQL takes one lock for all notifying transactions of a server while they commit, and
// refuses to PREPARE such transactions. Writers that use two-phase commit need a store without
// a channel.
func WithNotifyChannel(channel string) StoreOption {
	return func(c *StoreConfig) { c.NotifyChannel = channel }
}

// WithLogger sets StoreConfig.Logger.
func WithLogger(l store.Logger) StoreOption {
	return func(c *StoreConfig) { c.Logger = l }
}

// NewStoreConfig returns the default config, changed by opts.
func NewStoreConfig(opts ...StoreOption) *StoreConfig {
	c := &StoreConfig{Logger: store.NoOpLogger{}}
	for _, opt := range opts {
		if opt != nil {
			opt(c)
		}
	}
	return c
}

// DefaultStoreConfig returns the default config.
func DefaultStoreConfig() *StoreConfig { return NewStoreConfig() }

// Store is an event log in PostgreSQL. A Store holds no connection and is safe for concurrent use.
type Store struct {
	events, heads ident.Table
	sql           statements
	log           store.Logger
	err           error // of the config; every method returns it

	proves      bool // its SQL proves the incarnation
	incarnation string

	heavy  *atomic.Int32 // remaining reads with the exact form, see querySized
	sparse *atomic.Int32 // remaining reads without readNear
}

// NewStore returns a Store over the tables of cfg. A nil cfg is DefaultStoreConfig(). NewStore
// opens nothing and cannot fail. Validate reports an error of cfg, and so does every method
// that reads or writes.
func NewStore(cfg *StoreConfig) *Store {
	if cfg == nil {
		cfg = DefaultStoreConfig()
	}
	s := &Store{log: cfg.Logger, heavy: new(atomic.Int32), sparse: new(atomic.Int32)}
	if s.log == nil {
		s.log = store.NoOpLogger{}
	}
	if s.events, s.heads, s.err = cfg.tables(); s.err == nil {
		s.sql = newStatements(s.events, s.heads, cfg.NotifyChannel, "")
	}
	return s
}

func (c *StoreConfig) tables() (events, heads ident.Table, err error) {
	t, err := tables.Parse(c.Names)
	if err != nil {
		return events, heads, fmt.Errorf("storepostgres: WithNames: %w", err)
	}
	if c.NotifyChannel != "" {
		if err = ident.Check("WithNotifyChannel", c.NotifyChannel); err != nil {
			return events, heads, fmt.Errorf("storepostgres: %w", err)
		}
	}
	return t.Events, t.Heads, nil
}

// Validate returns the error of the config with which NewStore was called.
func (s *Store) Validate() error { return s.err }

// canRead refuses a read of an invalid Store, or without a querier.
func (s *Store) canRead(q store.Querier) error {
	if s.err != nil {
		return s.err
	}
	if pgdriver.IsNil(q) {
		return fmt.Errorf("storepostgres: %w", pgdriver.ErrNil)
	}
	return nil
}

// PositionColumn returns the quoted events table and the column whose default draws the positions.
func (s *Store) PositionColumn() (table, column string) {
	return s.events.SQL(), positionColumn
}
