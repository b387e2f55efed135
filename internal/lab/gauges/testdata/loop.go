// Package worker has a loop.
package worker

// Loop runs.
type Loop struct{ left int }

type consumerLoop struct{ Loop }

func (l *consumerLoop) run() {
	for l.left > 0 {
		l.step()
	}
}

func (l *consumerLoop) more() bool { return l.left > 0 }

// Run runs.
func (l *Loop) Run() { (&consumerLoop{*l}).run() }
