package pgtest_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestNewHasTheTables(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `SELECT * FROM events`)
}

func TestEmptyHasNone(t *testing.T) {
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE events (only_here INT)`)
}
