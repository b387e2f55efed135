package events

import (
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// A worker need not end because a handler has rolled its batch back, if the connection was
// lost before the worker could read.
func TestLostConnectionHidesARollback(t *testing.T) {
	undone := history.Breach{Consumer: "all-1", Worker: "worker 1.1", Batch: "7", Ended: true}
	lost := fmt.Errorf("commit: %w", driver.ErrBadConn)
	for name, is := range map[string]struct {
		done []observe.Batch
		must bool
	}{
		"lost":                   {[]observe.Batch{{Consumer: "all-1", Err: lost}}, false},
		"of another consumer":    {[]observe.Batch{{Consumer: "all-2", Err: lost}}, true},
		"after another consumer": {[]observe.Batch{{Consumer: "all-2"}, {Consumer: "all-1", Err: lost}}, false},
		"seen":                   {[]observe.Batch{{Consumer: "all-1", Err: worker.ErrTransactionEnded}}, true},
		"passed over":            {[]observe.Batch{{Consumer: "all-1"}, {Consumer: "all-1", Err: lost}}, true},
	} {
		s := &shared{on: NewDatabase(server.NewInstance(&server.Database{}, nil))}
		s.Breached(undone)
		n := &node{Machine: &stage.Machine{Name: undone.Worker, History: history.New(time.Now())}}
		n.undone.Store(&undone)
		for _, b := range is.done {
			n.excuse(b, s)
		}
		if all := s.broken.judge(nil); len(all) != 1 || all[0].Ended != is.must || all[0].Batch != "7" {
			t.Errorf("%s: %+v", name, all)
		}
	}
}
