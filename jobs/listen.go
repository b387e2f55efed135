package jobs

import (
	"context"
	"fmt"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
)

// listener is the state of the listening connection.
type listener struct {
	mu   sync.Mutex
	lost error
}

func (w *Worker) notifyError() error {
	w.listens.mu.Lock()
	defer w.listens.mu.Unlock()
	return w.listens.lost
}

func (w *Worker) setNotifyError(err error) {
	w.listens.mu.Lock()
	defer w.listens.mu.Unlock()
	w.listens.lost = err
}

// listen passes on what is told of new jobs, and of what operators do.
func (w *Worker) listen(ctx context.Context) error {
	err := listen.Run(ctx, w.cfg.notify, map[string]func(string){
		w.news: func(queue string) {
			for _, l := range w.loops {
				if queue == "" || queue == l.name {
					l.news.Store(true)
					l.nudge()
				}
			}
		},
		w.changes: func(string) {
			for _, l := range w.loops {
				l.look.Store(true)
				l.news.Store(true)
				l.nudge()
			}
		},
	}, listen.Health{
		Connected: func() {
			w.setNotifyError(nil)
			w.recovered("notify", "")
		},
		Lost: func(err error) {
			err = errtext.Of(err)
			w.setNotifyError(err)
			w.troubled("notify", "", func() {
				tell(w.voice, "NotifyFailed", func(o *Observer) func(error) { return o.NotifyFailed }, err)
			})
		},
	})
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}

type trouble struct{ what, queue string }

// troubled tells of a trouble, each time.
func (w *Worker) troubled(what, queue string, say func()) {
	w.troubles.Begin(trouble{what, queue})
	say()
}

// recovered tells once that a trouble is over.
func (w *Worker) recovered(what, queue string) {
	if lasted, was := w.troubles.End(trouble{what, queue}); was {
		tell(w.voice, "Recovered", func(o *Observer) func(Recovery) { return o.Recovered }, Recovery{what, queue, lasted})
	}
}
