package pgtest

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// Opener opens another pool on a database, over a driver in one of its modes. It is
// closed in cleanup.
type Opener func(t testing.TB, d *Database) *sql.DB

// ThroughBouncer are the drivers that work behind a transaction-pooling proxy, and
// BrokenByBouncer those that it breaks: they prepare statements in one transaction and
// execute them in the next.
var (
	ThroughBouncer = map[string]Opener{
		"pgx exec":                     InMode(pgx.QueryExecModeExec),
		"pgx cache_describe":           InMode(pgx.QueryExecModeCacheDescribe),
		"pgx simple_protocol":          InMode(pgx.QueryExecModeSimpleProtocol),
		"lib/pq binary_parameters=yes": WithPQ("binary_parameters", "yes"),
	}
	BrokenByBouncer = map[string]Opener{
		"pgx cache_statement": InMode(pgx.QueryExecModeCacheStatement),
		"pgx describe_exec":   InMode(pgx.QueryExecModeDescribeExec),
		"lib/pq":              WithPQ("application_name", "plain"),
	}
)

// Modes are the ways in which pgx sends statements. The quick tier has two of them: the
// default, and the one whose values are in the text.
func Modes() []pgx.QueryExecMode {
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
	if tier.IsLong() {
		modes = append(modes, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec)
	}
	return modes
}

// InMode opens pgx in a mode.
func InMode(mode pgx.QueryExecMode) Opener {
	return func(t testing.TB, d *Database) *sql.DB { return d.OpenMode(t, mode) }
}

// WithPQ opens lib/pq, with something added to the connection string.
func WithPQ(key, value string) Opener {
	return func(t testing.TB, d *Database) *sql.DB {
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal("pgtest: the connection string is no URL")
		}
		query := u.Query()
		query.Set(key, value)
		u.RawQuery = query.Encode()
		return (&Database{URL: u.String()}).OpenPQ(t)
	}
}
