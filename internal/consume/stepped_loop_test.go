package consume

import (
	"context"
	"errors"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// loop is the loop of a consumer. Its threads stop before each statement that depends on
// others or that others may observe.
type loop struct {
	c            *consumerLoop
	worker       string
	main         *thread
	ahead        *readers // the threads that read stretches ahead
	waits        uint32   // the backend of main's guard while the guard waits for another batch
	reads        int      // statements of main's step that read events, and stretches that were read ahead before
	waitRecorded bool     // its wait was recorded
	result                // of the latest step
}

// readers are the threads that read ahead, for all loops that share the stretches.
type readers struct {
	stops   chan *stop // the points at which they stop
	threads []*thread
}

func (l *loop) unit() string { return l.c.unit.name }
func (l *loop) idle() bool   { return l.main.done == nil }
func (l *loop) busy() bool   { return !l.idle() }

// loops returns the loops of both workers. The two loops of one consumer are half of the
// length apart.
func (s *stage) loops() (all []*loop) {
	for _, w := range s.workers {
		all = append(all, w.loops...)
	}
	return all
}

// choose prefers the loops of the consumers' owners.
func (s *stage) choose(n int) *loop {
	loops := s.loops()
	l := loops[n%len(loops)]
	if n < 2*len(loops) && s.owner[l.unit()] != l.c.w {
		l = loops[(n+len(loops)/2)%len(loops)]
	}
	return l
}

// stepLoop runs a loop to its next stop.
func (s *stage) stepLoop(who, what int) { s.advance(s.choose(who), what%2 == 0) }

// stepBatch makes a loop finish its step, or make one.
func (s *stage) stepBatch(who, _ int) {
	l := s.choose(who)
	if l.idle() {
		s.advance(l, true)
	}
	s.finishStep(l)
}

// fail makes a handler fail.
func (s *stage) fail(who, _ int) {
	l := s.choose(who)
	l.c.unit.consumer.(steppedConsumer).fails.Store(true)
	s.record(l.worker, l.unit(), history.FaultInjected, history.Injection{Fault: handlerFault})
}

// lose makes a loop commit a batch and lose the answer.
func (s *stage) lose(who, _ int) {
	l := s.choose(who)
	if s.script.calm {
		return
	}
	s.advance(l, false)
	for !l.idle() && l.waits == 0 && !l.before("commit") {
		s.advance(l, false)
	}
	if l.before("commit") {
		s.record(l.worker, l.unit(), history.FaultInjected, history.Injection{Fault: answerLost})
		lineOf(l.main.at.conn).lose.Store(true)
		s.faults++
		s.saw("lost")
		s.resume(l, l.main)
	}
}

// before reports whether a loop is about to run a statement.
func (l *loop) before(statement string) bool {
	return l.main.at != nil && l.main.at.before == statement
}

// finishStep runs a loop to the end of its step, or to its wait. An outcome lookup after a
// crash retries until the frontier knows the server. In a worker the frontier runs
// concurrently. Here it runs after a number of statements.
func (s *stage) finishStep(l *loop) {
	const many = 50
	for n := 1; !l.idle() && l.waits == 0; n++ {
		s.advance(l, false)
		if n%many == 0 {
			s.stepFrontier(slices.IndexFunc(s.workers[:], func(w *steppedWorker) bool { return w.name == l.worker }), 0)
		}
	}
}

// advance runs one thread of a loop to its next stop. An idle loop would wait for the
// read-ahead.
func (s *stage) advance(l *loop, ahead bool) {
	reader := slices.IndexFunc(l.ahead.threads, (*thread).stopped)
	switch {
	case l.waits != 0:
	case reader >= 0 && (ahead || l.idle()):
		s.resume(l, l.ahead.threads[reader])
	case !l.idle():
		s.resume(l, l.main)
	default:
		done := make(chan struct{})
		l.main.done, l.reads = done, 0
		if l.c.reader.Follows() {
			l.reads++
		}
		ctx := context.WithValue(s.ctx, threadKey{}, l.main)
		l.c.stop = s.ctx // as run sets it
		go func() {
			defer close(done)
			var fatal error
			if l.result, fatal = l.c.step(ctx, ctx); fatal != nil {
				l.err = fatal
			}
		}()
		s.await(l)
	}
}

func (s *stage) resume(l *loop, t *thread) {
	at := t.at
	t.at = nil
	switch {
	case at.before == "read":
		l.reads++
	case at.before == "guard" && l.reads == 0:
		s.saw("shared")
	}
	if at.before == "guard" && s.locked(l) {
		l.waits = backendOf(at.conn)
	}
	free := at.before == "guard" && l.waits == 0
	t.read = t.works != nil
	close(at.resume)
	if t.read {
		s.awaitAhead(l)
		s.recordNotes(l, at.by)
		return
	}
	s.await(l)
	if free && l.before("commit") && s.owner[l.unit()] != l.c.w {
		s.wrong("%s, %s: a batch began though the consumer is assigned to the other worker", l.worker, l.unit())
	}
	s.settle() // a thread that gets its lock must not run beside the next step
}

// locked reports whether another batch of the loop's consumer has passed its guard.
func (s *stage) locked(l *loop) bool {
	for _, other := range s.loops() {
		if other != l && other.unit() == l.unit() && other.before("commit") {
			return true
		}
	}
	return false
}

// await waits until main stops, ends its step, or waits for a lock, and until its
// read-ahead stops too.
func (s *stage) await(l *loop) {
	for l.waits != 0 && !l.main.arrived() {
		if s.number(`SELECT count(*) FROM pg_locks WHERE pid = $1::int AND NOT granted`, l.waits) > 0 {
			if !l.waitRecorded {
				l.waitRecorded = true
				s.record(l.worker, l.unit(), guardWaits, nil)
				s.saw("guard waits")
			}
			return
		}
	}
	if l.waits == 0 {
		l.main.await()
	}
	l.waits, l.waitRecorded = 0, false
	s.recordNotes(l, l.main)
	s.awaitAhead(l)
	if l.idle() {
		s.check(l)
	}
}

// awaitAhead waits until all readers have stopped or ended. A reader that ends may have
// begun another one.
func (s *stage) awaitAhead(l *loop) {
	for {
		s.meetAhead(l)
		i := slices.IndexFunc(l.ahead.threads, func(t *thread) bool { return t.at == nil })
		if i < 0 {
			return
		}
		select {
		case at := <-l.ahead.stops:
			s.meetAhead(l) // it may have begun just now
			l.ahead.reader(at).at = at
		case <-l.ahead.threads[i].done:
			l.ahead.threads[i].done = nil
		}
	}
}

// meetAhead adds new readers and removes those that have ended.
func (s *stage) meetAhead(l *loop) {
	l.ahead.threads = slices.DeleteFunc(l.ahead.threads, func(t *thread) bool { return t.done == nil })
	for _, reading := range l.c.reader.Reading() {
		if !slices.ContainsFunc(l.ahead.threads, func(t *thread) bool { return t.works == reading }) {
			l.ahead.threads = append(l.ahead.threads, &thread{works: reading, done: reading.Done()})
			s.saw("read ahead")
		}
	}
}

// stopped reports whether a reader is stopped before a statement.
func (r *readers) stopped() bool { return slices.ContainsFunc(r.threads, (*thread).stopped) }

func (t *thread) stopped() bool { return t.at != nil }

// reader returns the thread of a stop. Of the readers that have read their stretch, at most
// one runs at a time. The same holds for the other readers.
func (r *readers) reader(at *stop) *thread {
	i := slices.IndexFunc(r.threads, func(t *thread) bool { return t.at == nil && t.read == (at.before == "count") })
	return r.threads[i]
}

func (t *thread) await() {
	select {
	case t.at = <-t.stops:
	case <-t.done:
		t.done = nil
	}
}

func (t *thread) arrived() bool {
	select {
	case t.at = <-t.stops:
	case <-t.done:
		t.done = nil
	default:
		return false
	}
	return true
}

// settle checks whether waiting loops have got their locks.
func (s *stage) settle() {
	for _, l := range s.loops() {
		if l.waits != 0 {
			s.await(l)
		}
	}
}

// check checks the result of a step.
func (s *stage) check(l *loop) {
	ofBatch := l.work != nil && l.failed()
	blamed, scripted := ofBatch && l.outcome == handlerFailed, ofBatch && errors.Is(l.err, errScripted)
	switch {
	case l.err == nil:
		if l.outcome == overtaken {
			s.saw("overtaken")
		}
		return
	case blamed != scripted:
		s.wrong("%s, %s: the handler is blamed: %v, for %v", l.worker, l.unit(), blamed, l.err)
	case blamed:
		s.saw("failed")
	case s.faults == 0:
		s.wrong("%s, %s: without any fault: %v", l.worker, l.unit(), l.err)
	}
	if !ofBatch { // or the batch reports it
		s.record(l.worker, l.unit(), stepFailed, errorText(l.err))
	}
}
