package sim

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

const pulseTable = `
CREATE TABLE sim_pulse (at TIMESTAMPTZ NOT NULL);
INSERT INTO sim_pulse VALUES (clock_timestamp())`

// pulse writes a row over and over, on a connection of its own as heartbeats do, until ctx
// ends. It takes down when that takes half of the time in which workers have to send theirs: the
// machine does not keep up then.
func (s *jobSimulation) pulse(ctx context.Context) {
	var conn *sql.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for last := time.Now(); backoff.Sleep(ctx, sampleEvery); {
		var err error
		if conn == nil {
			if conn, err = s.on.db.Conn(ctx); err != nil {
				continue // the server is away
			}
		}
		if _, err = conn.ExecContext(ctx, `UPDATE sim_pulse SET at = clock_timestamp()`); err != nil {
			_ = conn.Close()
			conn = nil
			continue
		}
		if time.Since(last) > s.scenario.Jobs.HeartbeatTimeout/2 {
			s.book.slowness(last)
		}
		last = time.Now()
	}
}
