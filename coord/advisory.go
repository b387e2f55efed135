package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/refusal"
)

// ErrTransactionPooling: something between this worker and the server gives
// each transaction another session, so that a session's locks protect nothing.
var ErrTransactionPooling = refusal.ErrTransactionPooling

// wrap names the package in an error of a session.
func wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, liveness.ErrPooled):
		err = ErrTransactionPooling
	}
	return fmt.Errorf("coord: %w", err)
}

// endSilent ends the leader's session if it has been silent for as long as
// idle_session_timeout would let it, where the server has no such setting.
func (s *session) endSilent(ctx context.Context) error {
	if !s.Endless || time.Since(s.asked) < s.cfg.HeartbeatTimeout/4 {
		return nil
	}
	s.asked = time.Now()
	_, err := s.Exec(ctx, "end a silent leader's session", s.sql.endSilent, s.args()...)
	return err
}
