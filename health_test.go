package worker_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store/consumer"
)

// The recipe is green only while a worker does its work: red before and after,
// while the head of the log moves and Safe does not, and while the log cannot
// be looked at.
func TestHealth(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	unready(t, &health{worker: worker.New(d.DB, newStore(), nil), patience: time.Minute}, "the worker is new")

	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithGapPolicy(worker.GapWait))
	slow, quick := &health{worker: w.Worker, patience: time.Minute}, &health{worker: w.Worker, patience: 300 * time.Millisecond}
	ready := func() bool { return slow.ready() == nil }
	await(t, "the worker to be ready", ready)

	open := beginAppend(t, d.DB, "Order", "open", 1) // position 1
	defer func() { _ = open.Rollback() }()
	for position := 2; position < 6; position++ { // the head moves
		appendN(t, d.DB, "Order", "1", 1)
		await(t, "the worker to see the event, and that it may not be read", func() bool {
			err := quick.ready()
			return w.Status().Head == int64(position) && err != nil && strings.Contains(err.Error(), "safe has been at 0")
		})
		if err := slow.ready(); err != nil {
			t.Errorf("within its patience: %v", err)
		}
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	await(t, "safe to move", func() bool {
		err := quick.ready()
		return w.Status().Safe == 5 && (err == nil || !strings.Contains(err.Error(), "safe has been"))
	})

	const sequence = `events_global_position_seq`
	d.Exec(t, `ALTER SEQUENCE `+sequence+` CACHE 2`)
	setup := (*frontier.SetupError)(nil)
	await(t, "the altered sequence to be noticed", func() bool { return errors.As(slow.ready(), &setup) })
	answer := httptest.NewRecorder()
	probe(slow.ready)(answer, nil)
	if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), sequence) {
		t.Errorf("the probe answers %d: %s", answer.Code, answer.Body)
	}
	d.Exec(t, `ALTER SEQUENCE `+sequence+` CACHE 1`)
	await(t, "the worker to be ready again", ready)
	if err := slow.live(); err != nil {
		t.Errorf("a worker that runs: %v", err)
	}

	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	unready(t, slow, "the worker is stopped")
	if err := slow.live(); err == nil {
		t.Error("a worker that has stopped is live")
	}
}

func unready(t *testing.T, h *health, says string) {
	t.Helper()
	if err := h.ready(); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("ready says %v, want %q", err, says)
	}
}
