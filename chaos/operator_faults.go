//go:build unix

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	rescaled      history.Fault = "numbers of partitions fixed by an operator"
	killedHalfway history.Fault = "worker processes killed in the middle of a split or a merge"
)

const rescale = "rescale"

// operatorRows are what an operator does, beside all other faults.
var operatorRows = []faultRow{
	{
		Row: fault.Row{
			Name: rescale, Does: "an operator changes the number of partitions of a consumer every three seconds; half of the times SIGKILL for the worker process that splits or merges, before its COMMIT",
			Counts:  []history.Fault{rescaled},
			Reaches: []oracle.Condition{oracle.Rescaled},
		},
		also: []history.Fault{killedHalfway},
	},
}

// rescales changes how many parts consumers have until intake ends. What fails while the
// server is away is left out.
func (p *processes) rescales(ctx, intake context.Context) error {
	db, err := sql.Open("pgx", p.cluster.url(p.env.Database))
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { _ = db.Close() }()
	operator, err := ops.New(db)
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	dice := fault.Dice(p.config.Seed, "operator")
	for backoff.Sleep(intake, time.Duration(float64(3*time.Second)/p.faults[rescale])) {
		for _, c := range p.scenario.Scope {
			if c.Partitioned {
				p.rescale(ctx, operator, c.Name, dice)
			}
		}
		if dice.IntN(2) == 0 {
			p.killHalfway(ctx, db)
		}
	}
	return nil
}

// operation bounds what an operator does to a server that may be away. It is long enough
// for the parts of a merge to meet.
const operation = 8 * time.Second

func (p *processes) rescale(ctx context.Context, operator *ops.Operator, consumer string, dice *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, p.env.Bounds.Of(operation))
	defer cancel()
	n := []int{0, 1, 2, 3, 5, 8}[dice.IntN(6)]
	if operator.Partition(ctx, consumer, n, ops.By{Operator: "chaos", Reason: "to see what happens"}) == nil {
		p.env.Count(rescaled)
		p.env.History.Add("", consumer, history.FaultInjected, history.Injection{Fault: rescaled, Where: fmt.Sprintf("%d partitions", n)})
	}
}

// killHalfway keeps splits and merges from writing their last row, and kills the process
// of the first that waits for that. It leaves the processes alone while one of them
// breaks a rule, or the server is copied: what a handler did, only its process mends.
func (p *processes) killHalfway(ctx context.Context, db *sql.DB) {
	if !p.copying.TryLock() {
		return
	}
	defer p.copying.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.env.Bounds.Of(operation))
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `LOCK TABLE consumer_operations IN SHARE MODE`); err != nil {
		return
	}
	for backoff.Sleep(ctx, 5*time.Millisecond) {
		var name string
		err := tx.QueryRowContext(ctx, `
SELECT coalesce(max(application_name), '') FROM pg_stat_activity
WHERE application_name LIKE 'sim worker %' AND pg_backend_pid() = ANY (pg_blocking_pids(pid))`).Scan(&name)
		if err != nil || name != "" && p.killNamed(name) {
			return
		}
	}
}

// killNamed kills the process with connections of that name. Its slot finds it dead.
func (p *processes) killNamed(application string) bool {
	for _, s := range p.slots {
		x := s.current.Load()
		if x == nil || "sim "+x.name != application || x.ended() || x.broke.Load() {
			continue
		}
		x.killed.Store(true)
		x.signal(syscall.SIGKILL)
		p.env.Lose(x.name)
		p.happened(x.name, killedHalfway, "")
		return true
	}
	return false
}
