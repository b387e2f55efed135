// Package harness distinguishes failures of the simulation and the chaos from failures of the
// library. It has the bounds of their waits, measured against the machine, and their error.
package harness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
)

// The work that Measure times, and how long the reference takes for it: PostgreSQL 15,
// fsync off, on a quiet machine with two cores.
const (
	commits   = 20 // small transactions
	naps      = 20 // of a goroutine
	nap       = time.Millisecond
	reference = 70 * time.Millisecond
)

// measureBound ends a measurement on a server that does not answer. There is no
// measurement yet to scale it by.
const measureBound = time.Minute

// Measure returns the bounds for a server and this machine. It times a fixed amount of
// work: CREATE DATABASE, two connections, small transactions, DROP DATABASE, and how
// late a goroutine wakes up. On the reference it takes a tenth of a second. As load
// changes, each run needs a measurement of its own.
func Measure(ctx context.Context, server *pgx.ConnConfig) (Bounds, error) {
	bounded, cancel := context.WithTimeout(ctx, measureBound)
	defer cancel()
	began := time.Now()
	if err := work(bounded, server); err != nil {
		return Bounds{}, Statement("measuring the machine", measureBound, err)
	}
	return Bounds{Slowness: slowness(time.Since(began) + oversleep())}, nil
}

// slowness compares a measurement with the reference.
func slowness(measured time.Duration) float64 {
	return min(max(float64(measured)/float64(reference), 1), MaxSlowness)
}

// work is the server's part of the measurement.
func work(ctx context.Context, server *pgx.ConnConfig) (err error) {
	admin, err := pgx.ConnectConfig(ctx, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.Close(ctx)) }()
	own := server.Copy()
	own.Database = "sim_measure_" + strings.ToLower(rand.Text()[:12])
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+ident.Quote(own.Database)+" TEMPLATE template0"); err != nil {
		return err
	}
	defer func() {
		_, undone := admin.Exec(ctx, "DROP DATABASE "+ident.Quote(own.Database)+" WITH (FORCE)")
		err = errors.Join(err, undone)
	}()
	return commit(ctx, own)
}

// commit commits small transactions, one after the other.
func commit(ctx context.Context, config *pgx.ConnConfig) (err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := conn.Exec(ctx, `CREATE TABLE measured (n INT NOT NULL)`); err != nil {
		return err
	}
	for n := range commits {
		if _, err := conn.Exec(ctx, fmt.Sprintf(`INSERT INTO measured VALUES (%d)`, n)); err != nil {
			return err
		}
	}
	return nil
}

// oversleep returns by how much a goroutine woke up too late, in all its naps.
func oversleep() (late time.Duration) {
	for range naps {
		began := time.Now()
		time.Sleep(nap)
		late += time.Since(began) - nap
	}
	return late
}

// Bounds scales the bounds of the harness. A bound is stated for the reference, a quiet
// machine with two cores. The zero value is that machine. Settings that a seed draws for
// the library are not scaled.
type Bounds struct {
	// Slowness is how many times as long as the reference this machine takes, 1 to
	// MaxSlowness as Measure returns it. 0 is 1.
	Slowness float64
	// Patience is how many times as long the harness waits in addition. 0 is 1.
	Patience float64
}

// MaxSlowness is the most that Measure returns. A server that is slower still is not
// waited for.
const MaxSlowness = 20

// Of returns how long the harness waits for what the reference does in d.
func (b Bounds) Of(d time.Duration) time.Duration {
	return time.Duration(float64(d) * orOne(b.Slowness) * orOne(b.Patience))
}

// Times returns the bounds n times as long. 0 is 1.
func (b Bounds) Times(n float64) Bounds {
	b.Patience = orOne(b.Patience) * orOne(n)
	return b
}

func (b Bounds) String() string {
	s := fmt.Sprintf("%.1f times as slow as the reference; bounds of the harness are scaled by that", orOne(b.Slowness))
	if p := orOne(b.Patience); p != 1 {
		s += fmt.Sprintf(", and by %g", p)
	}
	return s
}

func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}
