package runtime

import (
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
)

// Explain adds the remedies to the error of a lost prepared statement, as of a proxy that was added
// after the start, and to that of a standby. It adds none to a protocol violation (08P01), since
// PgBouncer also reports a dead server that way. of is the name of the package.
func Explain(of string, err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, refusal.ErrStandby) {
		return fmt.Errorf("%s: %w: %w", of, refusal.ErrStandby, err)
	}
	if !pgdriver.IsLostStatement(err) || errors.Is(err, refusal.ErrPreparedStatements) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", of, refusal.ErrPreparedStatements, err)
}
