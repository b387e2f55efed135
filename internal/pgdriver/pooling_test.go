package pgdriver_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pgtest"
)

// What a proxy breaks is found each time: a worker that starts would execute the
// statements of others.
func TestTryStatements(t *testing.T) {
	d := pgtest.Empty(t)
	proxy := d.Bounced(t, map[string]string{"default_pool_size": "6"})
	for name, open := range pgtest.BrokenByBouncer {
		t.Run("broken "+name, func(t *testing.T) { tryOften(t, open, proxy, true) })
	}
	for name, open := range pgtest.ThroughBouncer {
		t.Run(name, func(t *testing.T) { tryOften(t, open, proxy, false) })
	}
}

// Without a proxy nothing is mixed up, and yet it is known what a proxy would do. Some
// know the names of statements, so those with a name are tried.
func TestStatementsWithoutANameAreRefusedUntried(t *testing.T) {
	d := pgtest.Empty(t)
	for name, open := range map[string]pgtest.Opener{
		"pgx describe_exec": pgtest.BrokenByBouncer["pgx describe_exec"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"],
	} {
		if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: open(t, d)}); !pgdriver.IsMixedUp(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: pgtest.BrokenByBouncer["pgx cache_statement"](t, d)}); err != nil {
		t.Errorf("statements with names: %v", err)
	}
}

func tryOften(t *testing.T, open pgtest.Opener, proxy *pgtest.Database, broken bool) {
	t.Parallel() // they use the sessions of one another
	for range 20 {
		db := open(t, proxy)
		p, err := pgdriver.FindPooling(t.Context(), pgdriver.Pool{DB: db})
		if err != nil || !p.Pooled {
			t.Fatalf("looked for a proxy and found %+v, %v", p, err)
		}
		if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: db}); pgdriver.IsMixedUp(err) != broken || err != nil && !broken {
			t.Fatalf("tried statements: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
