package consume

import (
	"fmt"

	"github.com/pgfrontier/worker/sim/history"
)

// cut ends all connections of a worker.
func (s *stage) cut(who, _ int) {
	if s.script.calm {
		return
	}
	w := s.workers[who%len(s.workers)]
	s.record(w.name, "", history.FaultInjected, history.Injection{Fault: workerCut})
	s.end(`application_name = $1::text`, w.name)
	s.outlive(w)
	s.faults++
	s.saw("cut")
}

// crash crashes the server.
func (s *stage) crash(_, what int) {
	if !s.script.calm {
		s.interrupt(what%3 == 0)
	}
}

// interrupt kills the server and starts it again, or kills only a backend, preferably a
// writer's. After the death of a backend the server ends all other backends and recovers.
// Its start time stays the same.
func (s *stage) interrupt(onlyBackend bool) {
	if !onlyBackend {
		s.record("", "", history.FaultInjected, history.Injection{Fault: serverCrash})
		s.must(s.server.crash())
		s.saw("crash")
		s.recover()
		return
	}
	who, backend := "", int(s.number(`SELECT pg_backend_pid()`))
	if w := s.begun(0); w != nil {
		who, backend = s.name(w), w.pid
	}
	s.record(who, "", history.FaultInjected, history.Injection{Fault: backendKill})
	s.must(s.server.crashOf(backend))
	s.saw("kill")
	s.recover()
}

// crashBetween crashes the server between two statements of a frontier and of a loop. The
// frontier has preferably just published a value. The crash loses rows that the frontier
// and the loop have just read. The positions of these rows are drawn again, by a
// transaction that stays open and by others. Then all continue from their old state, the
// loops perhaps before the frontiers notice.
func (s *stage) crashBetween(who, what int) {
	if s.script.calm {
		return
	}
	pick := choices(what)
	if pick(3) > 0 {
		s.keepUp(who, pick(3))
	}
	if pick(4) > 0 {
		s.checkpoint(0, 0)
	}
	l, w := s.choose(who), pick(len(s.workers))
	s.supply(pick(6))
	s.pass(0, 0)
	for n, shown := 0, s.workers[w].shown; n < 4 && s.workers[w].shown == shown; n++ {
		s.stepFrontier(w, 0)
	}
	if pick(3) == 2 {
		s.stepFrontier(w, 0)
	}
	for range pick(4) {
		s.advance(l, false)
	}
	s.interrupt(pick(2) == 0)
	s.append(0, pick(3))
	for range 1 + pick(2) {
		s.supply(pick(3))
	}
	for range pick(3) {
		s.goOn(s.loops()...)
	}
	for i := range 2 * len(s.workers) {
		s.pollFrontier(w+i, 0)
	}
	s.goOn(s.loops()...)
}

// crashBehind lets a loop commit batches, and then crashes the server, which loses these
// batches. The loop does not notice the crash. The other worker then commits as many
// batches of the consumer, with more events in each. So the row has the revision that the
// first loop knows, at another position.
func (s *stage) crashBehind(who, what int) {
	if s.script.calm {
		return
	}
	pick := choices(what)
	w, consumer, batches := who%2, pick(2), 1+pick(2)
	follow := func(w, batches, supplies int) {
		l := s.workers[w].loops[consumer]
		s.give(l)
		s.goOn(l) // it notices the position
		for range batches {
			for range supplies {
				s.supply(pick(6))
			}
			s.pollFrontier(w, 0)
			s.goOn(l)
		}
	}
	s.give(s.workers[w].loops[consumer])
	s.keepUp(w, 1+pick(2))
	s.checkpoint(0, 0)
	follow(w, batches, 1)
	s.interrupt(pick(2) == 0)
	for i := range 2 * len(s.workers) {
		s.pollFrontier(i, 0)
	}
	follow(1-w, batches, 2)
	follow(w, 1, 1)
}

// goOn makes loops finish their steps, or make one.
func (s *stage) goOn(loops ...*loop) {
	for _, l := range loops {
		s.advance(l, true)
		s.finishStep(l)
	}
}

// checkpoint makes all commits durable. No later crash loses them, and the next crash
// repeats only the positions drawn since.
func (s *stage) checkpoint(int, int) { s.exec(`CHECKPOINT`) }

// recover continues after a crash.
func (s *stage) recover() {
	for i := range s.writers {
		if s.writers[i].tx != nil {
			s.forget(&s.writers[i])
		}
	}
	s.must(s.own.Close())
	s.openOwn()
	s.published = nil
	for _, w := range s.workers {
		s.outlive(w)
	}
	s.faults++
	s.settle()
	s.pass(0, 0) // The idle time exceeds the pools' limit, so they check that their connections are alive.
	s.pass(0, 0) // A loop may then notice nothing of the crash.
	left := s.number(`SELECT count(*) FROM events`)
	if left < s.committed {
		s.saw("commits undone")
	}
	s.record("", "", recovered, fmt.Sprintf("%d of %d events are left", left, s.committed))
	s.committed = left
	for _, l := range s.loops() {
		if s.number(`SELECT count(*) FROM consumer_assignments WHERE consumer_name = $1::text AND worker_id = $2::uuid`,
			l.unit(), l.c.w.id.String()) > 0 {
			s.owner[l.unit()] = l.c.w
			s.record(l.worker, l.unit(), assigned, nil)
		}
	}
}
