package pgdriver

import (
	"database/sql"
	"time"
)

// SlowStatement is how long a statement takes that may have a wrong plan.
const SlowStatement = slowStatement

// Keeps reports whether the next statement on conn keeps its plan.
func (p *Plans) Keeps(conn *sql.Conn) bool { return !p.anew(time.Now()) || !keepsPlans(conn) }

// KeepFrom sets when plans are kept again.
func (p *Plans) KeepFrom(t time.Time) { p.until.Store(t.UnixNano()) }

// KeptAt reports whether statements keep their plans at a time.
func (p *Plans) KeptAt(t time.Time) bool { return !p.anew(t) }

// Took records how long a statement took that ends now.
func (p *Plans) Took(query string, d time.Duration) {
	now := time.Now()
	p.took(query, now.Add(-d), now)
}
