package pgdriver

import (
	"database/sql"
	"time"
)

// SlowStatement is how long a statement takes that may have a wrong plan.
const SlowStatement = slowStatement

// Keeps reports whether the next statement on conn keeps its plan.
func (p *Plans) Keeps(conn *sql.Conn) bool { return p.On(conn, conn).(planned).mode == nil }

// KeepFrom sets when plans are kept again.
func (p *Plans) KeepFrom(t time.Time) { p.until.Store(t.UnixNano()) }
