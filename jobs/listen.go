package jobs

import "context"

// echoAgain is after how many checks the worker sends another echo on a connection that has
// received one. The pool may have moved to another server.
const echoAgain = 12

// listen wakes the loops for notifications of new jobs and of operations.
func (w *Worker) listen(ctx context.Context) error {
	return w.listener.Run(ctx, map[string]func(string){
		w.jobsChannel: func(queue string) {
			for _, l := range w.loops {
				if queue == "" {
					l.unwanted.Store(true)
				}
				if queue == "" || queue == l.name {
					l.newJobs.Store(true)
					l.wake()
				}
			}
		},
		w.changesChannel: func(string) {
			for _, l := range w.loops {
				l.reconcileAsked.Store(true)
				l.newJobs.Store(true)
				l.wake()
			}
		},
	})
}
