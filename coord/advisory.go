package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/refusal"
)

// errTransactionPooling reports a proxy between this worker and the server that gives each
// transaction another session. A session's locks protect nothing behind such a proxy.
var errTransactionPooling = refusal.ErrTransactionPooling

// wrap adds the package name to an error of a session.
func wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, liveness.ErrPooled):
		err = errTransactionPooling
	}
	return fmt.Errorf("coord: %w", err)
}

// endSilent ends the leader's session if the session has been idle for HeartbeatTimeout. It
// serves servers without the setting idle_session_timeout, which would end such a session.
func (s *session) endSilent(ctx context.Context) error {
	if !s.Endless || time.Since(s.asked) < s.cfg.HeartbeatTimeout/4 {
		return nil
	}
	s.asked = time.Now()
	_, err := s.Exec(ctx, "end a silent leader's session", s.sql.endSilent, s.args()...)
	return err
}
