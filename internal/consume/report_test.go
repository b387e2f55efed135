package consume

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// pgx's error about an unreachable server has three lines.
func TestErrorsOfEventsAreOneLine(t *testing.T) {
	var reported error
	w := &reports{observers: runtime.NewObservers(observe.Worker{}, nil, []observe.Observer{observe.On(func(e observe.FrontierFailed) { reported = e.Err })})}
	var f frontier.Config
	w.observeFrontier(&f, func() {})
	f.OnFailure(fmt.Errorf("failed to connect:\n\t%w", io.EOF))
	if !errors.Is(reported, io.EOF) || reported.Error() != "failed to connect: EOF" {
		t.Errorf("reported %q", reported)
	}
}
