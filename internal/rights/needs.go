// Package rights knows the privileges that a worker's statements need, and finds the privileges
// that a session's role lacks. Row-level security counts as a missing privilege, since a
// statement that does not see a row returns no error.
//
// The needs name columns, so that privileges on columns are enough. The needs are written by
// hand, for the statements of four packages. Tests compare the two. A role with exactly these
// privileges executes all statements. Without any one privilege, a statement fails.
package rights

import (
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/tables"
)

// Need is a privilege on columns of a table, on a whole table, or on the sequence of a column.
type Need struct {
	Table     string   `json:"table"` // as in SQL
	Privilege string   `json:"privilege"`
	Columns   []string `json:"columns"` // "*": all columns
	Serial    string   `json:"serial"`  // the column whose default draws from the sequence
	// Policies says that the table is a user's, whose policies may hide rows. Otherwise the
	// role must see all rows.
	Policies bool `json:"policies"`
}

// uses are the columns of a table that statements name.
type uses struct {
	table                  ident.Table
	reads, inserts, writes string
	deletes                bool
	serial                 string
}

func (u uses) needs() (all []Need) {
	for _, n := range []struct{ privilege, columns string }{{"SELECT", u.reads}, {"INSERT", u.inserts}, {"UPDATE", u.writes}} {
		if n.columns != "" {
			all = append(all, Need{Table: u.table.SQL(), Privilege: n.privilege, Columns: strings.Fields(n.columns)})
		}
	}
	if u.deletes {
		all = append(all, On(u.table, "DELETE")...)
	}
	if u.serial != "" {
		all = append(all, Need{Table: u.table.SQL(), Privilege: "USAGE", Serial: u.serial})
	}
	return all
}

// Worker returns the privileges that a worker needs on its own tables and on the catalog. lease
// reports whether the leader has a lease; otherwise it has an advisory lock. rescales reports
// whether the worker splits and merges consumers.
func Worker(t tables.Tables, lease, rescales bool) []Need {
	incarnation := incarnationOf(lease)
	var born, split, moved string
	if rescales {
		born, split, moved = " revision partition_key paused_at paused_by paused_reason effects", " split_at", "consumer_name "
	}
	tables := []uses{
		{
			table:   t.Checkpoints,
			reads:   "consumer_name last_position revision updated_at paused_at paused_by paused_reason split_at partitions partition_key effects scope scope_since receipt ctid xmin xmax tableoid",
			inserts: "consumer_name last_position scope scope_since" + born,
			writes:  "last_position revision updated_at paused_at paused_by paused_reason effects scope scope_since receipt" + split,
			deletes: rescales,
		},
		{
			table:   t.GapSkips,
			reads:   "* xmin",
			inserts: "id consumer_name worker_id gap_position gap_end missing state skip_to_position highest_visible_position first_seen_at created_at closed_at",
			deletes: true,
			serial:  "id",
		},
		{
			table:   t.DeadLetters,
			reads:   "* xmin",
			inserts: "consumer_name global_position aggregate_type aggregate_id event_id event_type error attempts order_key retry_at replay forget received",
			writes:  moved + "error attempts retry_at updated_at replay forget",
			deletes: true,
		},
		{
			table:   t.Operations,
			reads:   "consumer_name operation created_at operator detail", // the last two are read after a repair whose answer was lost
			inserts: "consumer_name operation detail operator reason",
			serial:  "id",
		},
		{
			table:   t.Receipts,
			reads:   "consumer_name unit xmin",
			inserts: "consumer_name unit first_position last_position events positions hash event_id partition_key scope",
			deletes: true,
		},
		{table: t.Token, reads: "only token database" + incarnation, inserts: "only token database", writes: "token database"},
		{table: t.Settled, reads: "log settled", inserts: "log settled", writes: "settled updated_at"},
		{table: t.Version, reads: "*"},
	}
	return append(needsOf(append(coordination(t, lease), tables...)), catalog()...)
}

// incarnationOf returns the column that tells whether a row is of the server's incarnation. A
// worker with a lease does not read it.
func incarnationOf(lease bool) string {
	if lease {
		return ""
	}
	return " xmin"
}

// coordination returns the uses of the tables of workers and assignments.
func coordination(t tables.Tables, lease bool) []uses {
	all := []uses{
		{
			table:   t.Nodes,
			reads:   "worker_id heartbeat_at status consumers hostname pid build protocol partitions draining drain_requested_at heartbeat_interval heartbeat_timeout created_at" + incarnationOf(lease),
			inserts: "worker_id heartbeat_at status consumers hostname pid build protocol partitions heartbeat_interval heartbeat_timeout",
			writes:  "heartbeat_at updated_at status consumers hostname pid build protocol partitions draining heartbeat_interval heartbeat_timeout",
			deletes: true,
		},
		stopped(t.Stopped),
		{
			table:   t.Assignments,
			reads:   "consumer_name worker_id partitions",
			inserts: "consumer_name worker_id partitions",
			writes:  "worker_id updated_at partitions",
			deletes: true,
		},
		counted(t.Changes),
	}
	if lease {
		all = append(all, leased(t.Leader))
	}
	return all
}

// stopped returns the uses of the table of stopped workers.
func stopped(table ident.Table) uses {
	return uses{
		table:   table,
		reads:   "worker_id stopped_at",
		inserts: "worker_id stopped_at how declared_by hostname pid build started_at",
		writes:  "stopped_at", // only to lock the row
		deletes: true,
	}
}

// leased returns the uses of the table of the leader's lease.
func leased(table ident.Table) uses {
	const columns = "worker_id term acquired_at expires_at"
	return uses{table: table, reads: "name " + columns, inserts: "name " + columns, writes: columns}
}

// counted returns the uses of the table of the count of changes.
func counted(table ident.Table) uses {
	return uses{table: table, reads: "only count", inserts: "only count", writes: "count"}
}

// On returns privileges on a whole table.
func On(table ident.Table, privileges ...string) (all []Need) {
	for _, p := range privileges {
		all = append(all, Need{Table: table.SQL(), Privilege: p})
	}
	return all
}

// Reads returns the privileges to read whole tables.
func Reads(tables ...ident.Table) (all []Need) {
	for _, t := range tables {
		all = append(all, On(t, "SELECT")...)
	}
	return all
}

// Waiter returns the privileges to wait for consumers.
func Waiter(t tables.Tables) []Need {
	return needsOf([]uses{
		{table: t.Checkpoints, reads: "consumer_name last_position paused_at paused_by paused_reason split_at scope effects"},
		{table: t.GapSkips, reads: "consumer_name state gap_position gap_end"},
		{table: t.DeadLetters, reads: "consumer_name global_position replay"},
		{table: t.Nodes, reads: "consumers partitions"},
		{table: t.Version, reads: "*"},
	})
}

func needsOf(tables []uses) (all []Need) {
	for _, u := range tables {
		all = append(all, u.needs()...)
	}
	return all
}

// catalog returns the privileges on the catalog to see which workers are alive.
func catalog() (all []Need) {
	for _, view := range []string{"pg_locks", "pg_stat_activity", "pg_prepared_xacts"} {
		all = append(all, Need{Table: "pg_catalog." + view, Privilege: "SELECT", Columns: []string{"*"}})
	}
	return all
}

// Log returns the privileges on the table of events: on all columns, or only on the column of
// positions.
func Log(table, column string, all bool) []Need {
	columns := []string{column}
	if all {
		columns = []string{"*"}
	}
	return []Need{
		{Table: table, Privilege: "SELECT", Columns: columns},
		{Table: table, Privilege: "SELECT", Serial: column},
	}
}
