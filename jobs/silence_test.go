package jobs_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// All connections of the pool die silently at once. With default options the worker recovers soon.
// Jobs end, new jobs run, heartbeats go on, and no failure is counted.
func TestAllConnectionsDieInSilence(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("began")
		if j.Args.N == 0 {
			<-release
		}
		return nil
	})
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[txJob]) error { return nil }, jobs.Timeout(0))
	db, hole := s.d.OpenHole(t)
	const dead = 26
	db.SetMaxIdleConns(2 * dead)
	held := s.add(task{0})
	swept := make(chan observe.PoolSwept, 10)
	w := jobs.NewWorker(db, s.Handlers, jobs.WithObserver(observe.On(func(p observe.PoolSwept) { swept <- p })))
	result := make(chan error, 1)
	go func() { result <- w.Start(t.Context()) }()
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	conns := make([]*sql.Conn, dead)
	for i := range conns {
		var err error
		if conns[i], err = db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	beat := w.Status().LastHeartbeat
	if n := hole.SwallowAll(); n < dead {
		t.Fatalf("%d connections died", n)
	}
	close(release)
	var ids []int64
	for n := range 5 {
		ids = append(ids, s.add(task{1 + n}), s.add(txJob{n}))
	}
	for _, id := range append(ids, held) {
		if i := s.ended(id); i.State != jobs.StateCompleted || i.Failures+i.Resets > 0 {
			t.Errorf("the job is %s, %d failures, %d resets: %+v", i.State, i.Failures, i.Resets, i.Attempts)
		}
	}
	s.until("a heartbeat", func() bool { return w.Status().LastHeartbeat.After(beat) })
	select {
	case <-swept:
	case <-time.After(patience):
		t.Error("no sweep is reported")
	}
	w.Stop()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A stop does not wait for connections that have all died silently.
func TestStopWhenAllConnectionsAreSilent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	db, hole := s.d.OpenHole(t)
	_, stop := s.runOn(db, jobs.WithNotifyConnectionString(s.d.URL))
	s.ended(s.add(task{}))
	hole.SwallowAll()
	if err := stop(); err != nil {
		t.Error(err)
	}
}
